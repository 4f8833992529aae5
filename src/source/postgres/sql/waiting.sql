-- Events that wait: failed ones per sink ($1, or all), blocked ones first, and delayed heads of keys; at most $2 of
-- each. With what stands behind each, counted up to $3. Served by delivery_retry, event_delayed (at most $4
-- rows), event_pkey, event_key.
select e.seq, e.id, e.kind, e.ordering_key, e.occurred_at, e.available_at, x.attempts, x.next_at, x.last_error,
       x.updated_at, x.skip, statement_timestamp(), x.sink,
       (select count(*)
        from (
          select from {schema}.event as o where o.ordering_key = e.ordering_key and o.seq > e.seq limit $3
        ) as b)
from (
  (
    select d.seq, d.sink, d.attempts, d.next_at, d.last_error, d.updated_at, d.skip
    from {schema}.delivery as d
    where d.state = 'retry' and ($1::text is null or d.sink = $1)
    order by d.next_at desc nulls first, d.seq
    limit $2
  )
  union all
  (
    select h.seq, null, 0, null, null, null, null
    from (
      select o.seq, o.ordering_key, o.available_at
      from {schema}.event as o
      where o.available_at <> o.occurred_at and o.available_at > statement_timestamp()
      order by o.available_at
      limit $4
    ) as h
    where (h.ordering_key is null
           or not exists (
             select from {schema}.event as o where o.ordering_key = h.ordering_key and o.seq < h.seq
           ))
      and not exists (select from {schema}.delivery as d where d.seq = h.seq and d.state = 'retry')
    order by h.available_at
    limit $2
  )
) as x
join {schema}.event as e on e.seq = x.seq
