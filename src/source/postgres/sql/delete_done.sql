-- Removes events that every sink of $1, and of the route written beside their marks, is done with; at most
-- $2. Starts from the sink with the fewest marks, since a sink that lags has few: the others' marks are not
-- walked. Served by delivery_done, delivery_pkey, event_pkey. Rows locked by somebody wait for the next time.
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
  returning e.seq
),
leftovers as (
  delete from {schema}.delivery as d where d.seq = any (array(select g.seq from gone as g))
)
select count(*) from gone
