-- Locks the rows that an operator names, in seq order as settlements do. Served by event_pkey.
select e.seq
from (select distinct o.seq from unnest($1::bigint[]) as o (seq) order by o.seq) as i
cross join lateral (
  select o.seq from {schema}.event as o where o.seq = i.seq for update of o
) as e
