-- Rows that fall due at or after $2, earliest first, at most $3: delayed ones from event_delayed, backed-off
-- ones from delivery_retry. Each row appears once, in the branch of its later time, so that every branch is
-- in order and a limit loses nothing in the middle.
select x.seq, x.ordering_key, x.due, statement_timestamp()
from (
  (
    select e.seq, e.ordering_key, e.available_at as due
    from {schema}.event as e
    left join lateral (
      select m.seq, m.state, m.next_at
      from {schema}.delivery as m
      where m.seq = e.seq and m.sink = $1
      limit 1
    ) as d on true
    where e.available_at <> e.occurred_at
      and e.available_at >= $2
      and (d.seq is null or (d.state = 'retry' and d.next_at < e.available_at))
    order by e.available_at
    limit $3
  )
  union all
  (
    select d.seq, e.ordering_key, d.next_at
    from {schema}.delivery as d
    join {schema}.event as e on e.seq = d.seq
    where d.sink = $1
      and d.state = 'retry'
      and d.next_at >= $2
      and d.next_at >= e.available_at
    order by d.next_at
    limit $3
  )
) as x
order by x.due, x.seq
limit $3
