-- Distinct kinds among the first $2 pending events, at most $1. Served by event_pkey.
select distinct s.kind
from (select e.kind from {schema}.event as e order by e.seq limit $2) as s
order by s.kind
limit $1
