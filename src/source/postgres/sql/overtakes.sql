-- What a requeue overtakes, for the $9 newest events that the filter selects: how many there are, how many of
-- their keys have later events pending, how many such events there are (counted up to $10 a key), how many of
-- the events come behind a later one of their key that their sink had, as far as $11 rows of the history tell
-- that were published since the first discard, and whether the history went on. Served by discarded_age or
-- discarded_pkey, event_key; the history has no index on keys, which would tax every publish.
with picked as materialized (
  select d.seq, d.sink, d.ordering_key, d.discarded_at
  from {schema}.discarded as d
  where ($1::uuid[] is null or d.id = any ($1))
    and ($2::text is null or d.sink = $2)
    and ($3::text is null or d.kind = $3)
    and ($4::text is null or starts_with(d.kind, $4))
    and ($5::text is null or d.ordering_key = $5)
    and ($6::text is null or d.reason = $6)
    and ($7::text is null or d.code = $7)
    and ($8::bigint is null or d.discarded_at <= statement_timestamp() - $8 * interval '1 microsecond')
  order by d.discarded_at desc
  limit $9
),
firsts as materialized (
  select p.ordering_key, min(p.seq) as seq
  from picked as p
  where p.ordering_key is not null
  group by p.ordering_key
),
ahead as (
  select (
    select count(*)
    from (
      select from {schema}.event as e where e.ordering_key = f.ordering_key and e.seq > f.seq limit $10
    ) as b
  ) as events
  from firsts as f
),
past as materialized (
  select h.ordering_key, h.sink, h.seq
  from {schema}.published as h
  where h.published_at >= (select min(p.discarded_at) from picked as p)
  limit $11
),
latest as (
  select h.ordering_key, h.sink, max(h.seq) as seq
  from past as h
  where h.ordering_key in (select f.ordering_key from firsts as f)
  group by h.ordering_key, h.sink
)
select (select count(*) from picked),
       (select count(*) from ahead as a where a.events > 0),
       (select coalesce(sum(a.events), 0)::bigint from ahead as a),
       (select count(*)
        from picked as p
        join latest as l on l.ordering_key = p.ordering_key and l.sink = p.sink and l.seq > p.seq),
       (select count(*) from past) >= $11
