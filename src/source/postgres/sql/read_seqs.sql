-- These rows with their bodies, whatever the size, unless they are gone or this sink is done with them.
-- Served by event_pkey; marks by delivery_pkey.
select e.seq, e.id, e.kind, e.ordering_key, e.available_at, d.next_at, statement_timestamp(),
       coalesce(d.attempts, 0), false,
       greatest(octet_length(e.payload::text), octet_length(e.payload_bytes)), true,
       e.payload::text, e.payload_bytes, e.content_type, e.headers::text, e.occurred_at, d.skip
from {schema}.event as e
left join lateral (
  select m.state, m.attempts, m.next_at, m.skip
  from {schema}.delivery as m
  where m.seq = e.seq and m.sink = $1
  limit 1
) as d on true
where e.seq = any ($2::bigint[]) and coalesce(d.state = 'retry', true)
order by e.seq
