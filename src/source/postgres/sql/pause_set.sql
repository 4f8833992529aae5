-- Holds something back, unless that is held back already or $6 things are. Served by pause_pkey.
insert into {schema}.pause (scope, name, sink, operator, reason)
select $1, $2, $3, $4, $5
where (select count(*) from {schema}.pause) < $6
on conflict (scope, name, sink) do nothing
