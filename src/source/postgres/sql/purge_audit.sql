-- Deletes audit rows older than a year, at most $1. Served by audit_at.
with old as materialized (
  select a.id
  from {schema}.audit as a
  where a.at < clock_timestamp() - interval '1 year'
  order by a.at
  limit $1
  for update of a skip locked
)
delete from {schema}.audit as a using old as o where a.id = o.id
