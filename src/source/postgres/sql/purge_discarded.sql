-- Deletes discarded events past their retention ($1 microseconds), oldest first, at most $2; rows locked by
-- somebody wait for the next time. Served by discarded_age and discarded_pkey.
with old as materialized (
  select d.id, d.sink
  from {schema}.discarded as d
  where d.discarded_at < clock_timestamp() - $1 * interval '1 microsecond'
  order by d.discarded_at
  limit $2
  for update of d skip locked
)
delete from {schema}.discarded as d using old as o where d.id = o.id and d.sink = o.sink
