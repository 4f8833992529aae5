-- Removes events that every sink of $1, and of the route written beside their marks, is done with; at most
-- $2. Starts from the sink with the fewest marks, since a sink that lags has few: the others' marks are not
-- walked. Served by delivery_done, delivery_pkey, event_pkey. Rows locked by somebody wait for the next time. What was
-- published under a lease that had ended is only a mark: the history gets it here ($3: none, receipt or full).
with fewest as materialized (
  select r.sink
  from unnest($1::text[]) as r (sink)
  cross join lateral (
    select count(*) as marks
    from (
      select from {schema}.delivery as d where d.sink = r.sink and d.state <> 'retry' limit 10001
    ) as few
  ) as c
  order by c.marks
  limit 1
),
complete as materialized (
  select d.seq
  from {schema}.delivery as d
  where d.sink = (select fewest.sink from fewest)
    and d.state <> 'retry'
    and not exists (
      select from unnest($1::text[] || d.route) as q (sink)
      where not exists (
        select from {schema}.delivery as o
        where o.seq = d.seq and o.sink = q.sink and o.state <> 'retry'
      )
    )
  order by d.seq
  limit $2
),
locked as materialized (
  select e.seq
  from {schema}.event as e
  where e.seq = any (array(select complete.seq from complete))
  order by e.seq
  for update of e skip locked
),
gone as (
  delete from {schema}.event as e
  where e.seq = any (array(select k.seq from locked as k))
  returning e.seq, e.id, e.kind, e.ordering_key,
            e.payload, e.payload_bytes, e.content_type, e.headers, e.occurred_at, e.available_at
),
history as (
  insert into {schema}.published
    (seq, id, sink, attempts, stream, position, kind, ordering_key,
     payload, payload_bytes, content_type, headers, occurred_at, available_at)
  select g.seq, g.id, d.sink, d.attempts, d.stream, d.position, g.kind, g.ordering_key,
         f.payload, f.payload_bytes, f.content_type, f.headers, f.occurred_at, f.available_at
  from gone as g
  join {schema}.delivery as d on d.seq = g.seq and d.state = 'published' and not d.kept
  left join gone as f on f.seq = g.seq and $3 = 'full'
  where $3 <> 'none'
),
leftovers as (
  delete from {schema}.delivery as d where d.seq = any (array(select g.seq from gone as g))
)
select count(*) from gone
