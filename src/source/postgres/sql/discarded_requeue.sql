-- Puts discarded events back under their own seq and id. Where the event still waits for other sinks only this
-- sink's mark goes; where it is gone it comes back, marked done for every other sink of its route, so that
-- none of those gets it twice. Returns (seq, id) per row taken. Served by discarded_pkey or discarded_age,
-- event_pkey, delivery_pkey.
with picked as (
  delete from {schema}.discarded as d
  where ($1::uuid[] is null or d.id = any ($1))
  and ($2::text is null or d.sink = $2)
  and ($3::text is null or d.kind = $3)
  and ($4::text is null or starts_with(d.kind, $4))
  and ($5::text is null or d.ordering_key = $5)
  and ($6::text is null or d.reason = $6)
  and ($7::text is null or d.code = $7)
  and ($8::bigint is null or d.discarded_at <= statement_timestamp() - $8 * interval '1 microsecond')
  returning d.id, d.sink, d.seq, d.kind, d.ordering_key, d.payload, d.payload_bytes, d.content_type,
            d.headers, d.occurred_at, d.available_at, d.route
),
heads as (
  select distinct on (p.seq) p.id, p.seq, p.kind, p.ordering_key, p.payload, p.payload_bytes,
         p.content_type, p.headers, p.occurred_at, p.available_at, p.route
  from picked as p
  order by p.seq, p.sink
),
back as (
  insert into {schema}.event
    (seq, id, kind, ordering_key, payload, payload_bytes, content_type, headers, occurred_at, available_at)
  overriding system value
  select h.seq, h.id, h.kind, h.ordering_key, h.payload, h.payload_bytes, h.content_type, h.headers,
         h.occurred_at, h.available_at
  from heads as h
  order by h.seq
  on conflict (seq) do nothing
  returning seq
),
reset as (
  delete from {schema}.delivery as d using picked as p where d.seq = p.seq and d.sink = p.sink
),
others as (
  insert into {schema}.delivery (seq, sink, state, route)
  select b.seq, r.sink, 'published', h.route
  from back as b
  join heads as h on h.seq = b.seq
  cross join lateral unnest(h.route) as r (sink)
  where not exists (select from picked as p where p.seq = b.seq and p.sink = r.sink)
  order by b.seq, r.sink
  on conflict (seq, sink) do nothing
)
select p.seq, p.id from picked as p order by p.seq
