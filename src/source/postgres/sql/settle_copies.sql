-- History of published events: receipt and the whole event. Served by event_pkey.
insert into {schema}.published
  (seq, id, sink, attempts, stream, position, kind, ordering_key,
   payload, payload_bytes, content_type, headers, occurred_at, available_at)
select e.seq, e.id, o.sink, o.attempts, o.stream, o.position, e.kind, e.ordering_key,
       e.payload, e.payload_bytes, e.content_type, e.headers, e.occurred_at, e.available_at
from unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::bigint[])
  as o (seq, sink, attempts, stream, position)
join {schema}.event as e on e.seq = o.seq
