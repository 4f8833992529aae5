-- Keys' own runs. Guarantees: for each (key, from) the first $4 rows with seq >= from that this sink is not
-- done with. Served by event_key (one descent per key); marks by delivery_pkey.
select e.seq, e.id, e.kind, e.ordering_key, e.available_at, e.next_at, statement_timestamp(),
       e.attempts, false, s.size, w.wanted,
       case when w.wanted then e.payload::text end,
       case when w.wanted then e.payload_bytes end,
       case when w.wanted then e.content_type end,
       case when w.wanted then e.headers::text end,
       e.occurred_at, e.skip
from unnest($2::text[], $3::bigint[]) as k (ordering_key, first_seq)
cross join lateral (
  select o.seq, o.id, o.kind, o.ordering_key, o.payload, o.payload_bytes, o.content_type, o.headers,
         o.occurred_at, o.available_at, d.next_at, d.skip,
         coalesce(d.attempts, 0) as attempts
  from {schema}.event as o
  left join lateral (
    select m.state, m.attempts, m.next_at, m.skip
    from {schema}.delivery as m
    where m.seq = o.seq and m.sink = $1
    limit 1
  ) as d on true
  where o.ordering_key = k.ordering_key
    and o.seq >= k.first_seq
    and coalesce(d.state = 'retry', true)
  order by o.ordering_key, o.seq
  limit $4
) as e
cross join lateral (
  select greatest(
           octet_length(e.payload::text),
           octet_length(e.payload_bytes),
           case when pg_column_size(e.headers) > $5 then pg_column_size(e.headers) end
         ) as size
) as s
cross join lateral (
  select s.size <= $5
         and (e.skip is not null or greatest(e.available_at, e.next_at) <= statement_timestamp()) as wanted
) as w
