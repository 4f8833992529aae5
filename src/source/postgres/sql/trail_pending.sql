-- A page of pending events above seq $1, at most $2 rows: by kind, how many occurred from $4 up to $5 and $3 is not
-- done with, how many rows the page has, and its last seq. Served by event_pkey and delivery_pkey.
select p.kind,
       count(*) filter (
         where p.occurred_at >= $4 and p.occurred_at < $5 and coalesce(d.state, 'retry') = 'retry'
       ),
       count(*),
       max(p.seq)
from (
  select e.seq, e.kind, e.occurred_at from {schema}.event as e where e.seq > $1 order by e.seq limit $2
) as p
left join lateral (
  select o.state from {schema}.delivery as o where o.seq = p.seq and o.sink = $3 limit 1
) as d on true
group by p.kind
