-- A page of the done marks of $1 above seq $2, at most $3 rows, with the event's id while it is there. Those that say
-- "published" and were written from $4 up to $5 count. Served by delivery_done and event_pkey.
select d.seq, e.id, d.updated_at, e.ordering_key, d.state = 'published' and d.updated_at >= $4 and d.updated_at < $5,
       d.stream, d.position
from (
  select o.seq, o.state, o.updated_at, o.stream, o.position
  from {schema}.delivery as o
  where o.sink = $1 and o.state <> 'retry' and o.seq > $2
  order by o.seq
  limit $3
) as d
left join lateral (
  select o.id, o.ordering_key from {schema}.event as o where o.seq = d.seq limit 1
) as e on true
order by d.seq
