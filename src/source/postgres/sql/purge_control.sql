-- Deletes commands that every claimer has long read, at most $1. Served by control_pkey.
with old as materialized (
  select c.id
  from {schema}.control as c
  where c.command in ('look', 'hurry', 'pauses') and c.created_at < clock_timestamp() - interval '7 days'
  order by c.id
  limit $1
  for update of c skip locked
)
delete from {schema}.control as c using old as o where c.id = o.id
