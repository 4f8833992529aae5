-- Which of the seqs $2 operators have requeued or dropped, for $1 or for whatever sinks they were set aside for.
-- Walks those commands in the audit, which are few.
select distinct s.seq::bigint, a.action
from {schema}.audit as a
cross join lateral jsonb_array_elements_text(
  case jsonb_typeof(a.detail -> 'seqs') when 'array' then a.detail -> 'seqs' else '[]'::jsonb end
) as s (seq)
where a.action in ('requeue', 'drop')
  and coalesce(a.detail ->> 'sink', $1) = $1
  and s.seq::bigint = any ($2::bigint[])
