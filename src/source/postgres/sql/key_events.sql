-- The first $3 rows of a key that this sink is not done with, in order. Served by event_key; marks by
-- delivery_pkey.
select e.seq, e.id, e.kind, e.ordering_key, e.occurred_at, e.available_at, coalesce(d.attempts, 0), d.next_at,
       d.last_error, d.updated_at, d.skip, statement_timestamp()
from {schema}.event as e
left join {schema}.delivery as d on d.seq = e.seq and d.sink = $1
where e.ordering_key = $2 and coalesce(d.state = 'retry', true)
order by e.ordering_key, e.seq
limit $3
