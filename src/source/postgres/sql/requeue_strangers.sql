-- How many of these (seq, id) are not in the outbox: a seq that another event has by now cannot be taken
-- back. Served by event_pkey.
select count(*)
from unnest($1::bigint[], $2::uuid[]) as o (seq, id)
where not exists (select from {schema}.event as e where e.seq = o.seq and e.id = o.id)
