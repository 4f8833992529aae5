-- Which rows exist in these ranges? The first $3, ascending. Served by event_pkey: an empty range costs one
-- descent and reads no row.
select e.seq, e.ordering_key
from unnest($1::bigint[], $2::bigint[]) as r (low, high)
cross join lateral (
  select o.seq, o.ordering_key
  from {schema}.event as o
  where o.seq between r.low and r.high
  order by o.seq
  limit $3
) as e
order by e.seq
limit $3
