-- Reading forward. Guarantees: every visible row with seq > $2, ascending, whatever its columns hold, up to the
-- row that is the $3rd or the $6th with a body; bodies only where they will be used. Served by event_pkey;
-- marks by delivery_pkey, one lookup a row: without its limit the planner, which may take the table for empty, can
-- prefer a walk over all marks.
-- octet_length does not detoast, so a large payload is measured without being read.
select seq, id, kind, ordering_key, available_at, next_at, statement_timestamp(),
       attempts, done, size, wanted,
       case when wanted then payload::text end,
       case when wanted then payload_bytes end,
       case when wanted then content_type end,
       case when wanted then headers::text end,
       occurred_at, skip
from (
  select e.*, d.next_at, d.skip, coalesce(d.attempts, 0) as attempts, s.done, s.size, w.wanted,
         count(*) filter (where w.wanted) over (order by e.seq rows unbounded preceding) as bodies
  from (
    select o.seq, o.id, o.kind, o.ordering_key, o.payload, o.payload_bytes, o.content_type, o.headers,
           o.occurred_at, o.available_at
    from {schema}.event as o
    where o.seq > $2
    order by o.seq
    limit $3
  ) as e
  left join lateral (
    select m.state, m.attempts, m.next_at, m.skip
    from {schema}.delivery as m
    where m.seq = e.seq and m.sink = $1
    limit 1
  ) as d on true
  cross join lateral (
    select coalesce(d.state <> 'retry', false) as done,
           greatest(
             octet_length(e.payload::text),
             octet_length(e.payload_bytes),
             -- Headers count only when they alone would be too much.
             case when pg_column_size(e.headers) > $5 then pg_column_size(e.headers) end
           ) as size
  ) as s
  cross join lateral (
    select not s.done
           and s.size <= $5
           and (d.skip is not null or greatest(e.available_at, d.next_at) <= statement_timestamp())
           and not coalesce(e.ordering_key = any ($4::text[]), false) as wanted
  ) as w
) as r
where bodies - (wanted is true)::int < $6
order by seq
