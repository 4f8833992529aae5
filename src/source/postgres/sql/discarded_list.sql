-- Discarded events, newest first, at most $9; large payloads only where events were named one by one. Filters
-- that are null drop out when the statement is planned. Served by discarded_pkey or discarded_age.
select d.seq, d.id, d.sink, d.kind, d.ordering_key, d.reason, d.code, d.last_error, d.attempts,
       d.discarded_at, s.size,
       case when $1 is not null or s.size <= $10
            then coalesce(d.payload::text, replace(encode(d.payload_bytes, 'base64'), E'\n', '')) end,
       d.headers::text
from {schema}.discarded as d
cross join lateral (
  select greatest(octet_length(d.payload::text), octet_length(d.payload_bytes)) as size
) as s
where ($1::uuid[] is null or d.id = any ($1))
  and ($2::text is null or d.sink = $2)
  and ($3::text is null or d.kind = $3)
  and ($4::text is null or starts_with(d.kind, $4))
  and ($5::text is null or d.ordering_key = $5)
  and ($6::text is null or d.reason = $6)
  and ($7::text is null or d.code = $7)
  and ($8::bigint is null or d.discarded_at <= statement_timestamp() - $8 * interval '1 microsecond')
order by d.discarded_at desc, d.seq desc, d.sink
limit $9
