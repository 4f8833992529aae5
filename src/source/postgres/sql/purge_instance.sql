-- Deletes instances without a sign of life for a day, at most $1. A small table.
with old as materialized (
  select i.instance
  from {schema}.instance as i
  where i.seen_at < clock_timestamp() - interval '1 day'
  limit $1
  for update of i skip locked
)
delete from {schema}.instance as i using old as o where i.instance = o.instance
