-- Locks the rows that outcomes name, in seq order, whoever else settles or requeues. Returns those that are
-- there under their identity. Served by event_pkey.
select e.seq, e.id
from (
  select o.seq, o.id from unnest($1::bigint[], $2::uuid[]) as o (seq, id) order by o.seq
) as i
cross join lateral (
  select o.seq, o.id from {schema}.event as o where o.seq = i.seq and o.id = i.id for update of o
) as e
