-- Deletes discarded events for good, and tells their seqs. Served by discarded_pkey or discarded_age.
delete from {schema}.discarded as d
where ($1::uuid[] is null or d.id = any ($1))
  and ($2::text is null or d.sink = $2)
  and ($3::text is null or d.kind = $3)
  and ($4::text is null or starts_with(d.kind, $4))
  and ($5::text is null or d.ordering_key = $5)
  and ($6::text is null or d.reason = $6)
  and ($7::text is null or d.code = $7)
  and ($8::bigint is null or d.discarded_at <= statement_timestamp() - $8 * interval '1 microsecond')
returning d.seq
