-- Locks the rows that outcomes name, in seq order, whoever else settles or requeues. Returns those that are
-- there under their identity. Served by event_pkey.
select e.seq, e.id
from unnest($1::bigint[], $2::uuid[]) as o (seq, id)
join {schema}.event as e on e.seq = o.seq and e.id = o.id
order by e.seq
for update of e
