-- One slice of the sweep over keys: the next $3 keys after $2, each with its first row that this sink is not
-- done with (none: the key alone). Served by event_key, one descent per key; marks by delivery_pkey.
with recursive keys (ordering_key) as (
  (
    select o.ordering_key
    from {schema}.event as o
    where o.ordering_key > $2
    order by o.ordering_key
    limit 1
  )
  union all
  select (
    select o.ordering_key
    from {schema}.event as o
    where o.ordering_key > k.ordering_key
    order by o.ordering_key
    limit 1
  )
  from keys as k
  where k.ordering_key is not null
)
select k.ordering_key, h.seq, h.kind, h.due
from (select keys.ordering_key from keys where keys.ordering_key is not null limit $3) as k
left join lateral (
  select o.seq, o.kind,
         d.skip is not null or greatest(o.available_at, d.next_at) <= statement_timestamp() as due
  from {schema}.event as o
  left join lateral (
    select m.state, m.next_at, m.skip
    from {schema}.delivery as m
    where m.seq = o.seq and m.sink = $1
    limit 1
  ) as d on true
  where o.ordering_key = k.ordering_key and coalesce(d.state = 'retry', true)
  order by o.ordering_key, o.seq
  limit 1
) as h on true
