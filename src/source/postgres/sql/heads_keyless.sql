-- One slice of the sweep over rows without a key: the next $3 after $2, with whether this sink is done.
-- Served by event_key (nulls stand together, by seq); marks by delivery_pkey.
select e.seq, e.kind, coalesce(d.state <> 'retry', false),
       d.skip is not null or greatest(e.available_at, d.next_at) <= statement_timestamp()
from (
  select o.seq, o.kind, o.available_at
  from {schema}.event as o
  where o.ordering_key is null and o.seq > $2
  order by o.seq
  limit $3
) as e
left join lateral (
  select m.state, m.next_at, m.skip
  from {schema}.delivery as m
  where m.seq = e.seq and m.sink = $1
  limit 1
) as d on true
order by e.seq
