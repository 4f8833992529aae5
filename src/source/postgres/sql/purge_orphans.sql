-- Deletes what delivery holds of events that are gone by somebody else's hand: rows below the lowest pending
-- seq, at most $1. Served by event_pkey and delivery_pkey.
with old as materialized (
  select d.seq, d.sink
  from {schema}.delivery as d
  where d.seq < coalesce((select min(e.seq) from {schema}.event as e), 0)
    and d.updated_at < clock_timestamp() - interval '1 hour'
  order by d.seq, d.sink
  limit $1
  for update of d skip locked
)
delete from {schema}.delivery as d using old as o where d.seq = o.seq and d.sink = o.sink
