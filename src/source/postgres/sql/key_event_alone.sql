-- One row without a key, unless this sink is done with it. Served by event_pkey; marks by delivery_pkey.
select e.seq, e.id, e.kind, e.ordering_key, e.occurred_at, e.available_at, coalesce(d.attempts, 0), d.next_at,
       d.last_error, d.updated_at, d.skip, statement_timestamp()
from {schema}.event as e
left join {schema}.delivery as d on d.seq = e.seq and d.sink = $1
where e.seq = $2 and e.ordering_key is null and coalesce(d.state = 'retry', true)
