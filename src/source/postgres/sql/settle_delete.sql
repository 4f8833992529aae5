-- Deletes events that every sink of their route is done with, and what delivery holds of them. Their rows are
-- locked by this transaction. Served by event_pkey and delivery_pkey.
with gone as (
  delete from {schema}.event as e where e.seq = any ($1::bigint[]) returning e.seq
)
delete from {schema}.delivery as d where d.seq = any (array(select g.seq from gone as g))
