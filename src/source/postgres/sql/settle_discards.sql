-- Sets events aside for one sink each, whole. A second discard of the same event, after a requeue that is
-- still remembered elsewhere, replaces the first. Served by event_pkey and discarded_pkey.
insert into {schema}.discarded
  (id, sink, seq, kind, ordering_key, payload, payload_bytes, content_type, headers, occurred_at,
   available_at, reason, code, last_error, attempts, route)
select e.id, o.sink, e.seq, e.kind, e.ordering_key, e.payload, e.payload_bytes, e.content_type, e.headers,
       e.occurred_at, e.available_at, o.reason, o.code, o.last_error, o.attempts,
       array(select jsonb_array_elements_text(o.route::jsonb))
from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[])
  as o (seq, sink, reason, code, last_error, attempts, route)
join {schema}.event as e on e.seq = o.seq
on conflict (id, sink) do update
  set seq = excluded.seq, reason = excluded.reason, code = excluded.code,
      last_error = excluded.last_error, attempts = excluded.attempts, route = excluded.route,
      discarded_at = now()
