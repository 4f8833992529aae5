-- Events with marks above $1, at most $2: one row for each with each sink of the routes written beside its marks, and
-- whether that sink still waits for it. Served by delivery_pkey and event_pkey.
select distinct on (p.seq, r.sink)
       p.seq, e.id, e.kind, e.ordering_key, r.sink, coalesce(d.attempts, 0), d.last_error,
       e.seq is not null and coalesce(d.state, 'retry') = 'retry'
from (
  select distinct o.seq from {schema}.delivery as o where o.seq > $1 order by o.seq limit $2
) as p
join {schema}.delivery as m on m.seq = p.seq
cross join lateral unnest(m.route || m.sink) as r (sink)
left join {schema}.event as e on e.seq = p.seq
left join {schema}.delivery as d on d.seq = p.seq and d.sink = r.sink
order by p.seq, r.sink
