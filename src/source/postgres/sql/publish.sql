-- Inserts events in the order given: numbers are drawn after the sort. Payload text is stored as it is.
insert into {schema}.event
  (id, kind, ordering_key, payload, payload_bytes, content_type, headers, available_at)
select o.id, o.kind, o.ordering_key, o.payload::json, o.payload_bytes, o.content_type, o.headers::jsonb,
       now() + o.delay_us * interval '1 microsecond'
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::bigint[])
  with ordinality
  as o (id, kind, ordering_key, payload, payload_bytes, content_type, headers, delay_us, place)
order by o.place
