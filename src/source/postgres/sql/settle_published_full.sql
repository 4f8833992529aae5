-- Settles published events of routes with a single sink in one statement, keeping each whole event.
-- Guarantees: all or nothing; rows are locked in seq order; an event is deleted, with what delivery still
-- holds of it, only under a token that holds its shard; without one the fact that it was published is marked
-- and nothing else. Returns the seqs deleted. Served by lease_pkey, event_pkey, delivery_pkey.
with mode as materialized (
  -- For this transaction alone: a lost settlement is only a repeated delivery.
  select set_config('synchronous_commit', case when $6 then 'on' else 'off' end, true) as set
),
input as materialized (
  select o.seq, o.id, o.sink, l.shard is not null as held, o.attempts, o.stream, o.position
  from unnest($1::bigint[], $2::uuid[], $3::text[], $4::integer[], $5::bigint[],
              $7::bigint[], $8::text[], $9::bigint[])
    as o (seq, id, sink, shard, token, attempts, stream, position)
  left join {schema}.lease as l on l.shard = o.shard and l.token = o.token and l.owner is not null
),
locked as materialized (
  select e.seq, i.sink, i.held, i.attempts, i.stream, i.position
  from (select n.* from input as n order by n.seq) as i
  cross join lateral (
    select o.seq from {schema}.event as o where o.seq = i.seq and o.id = i.id for update of o
  ) as e
),
gone as (
  delete from {schema}.event as e
  where e.seq = any (array(select k.seq from locked as k where k.held))
  returning e.seq, e.id, e.kind, e.ordering_key,
            e.payload, e.payload_bytes, e.content_type, e.headers, e.occurred_at, e.available_at
),
leftovers as (
  delete from {schema}.delivery as d where d.seq = any (array(select g.seq from gone as g))
),
history as (
  insert into {schema}.published
    (seq, id, sink, attempts, stream, position, kind, ordering_key,
     payload, payload_bytes, content_type, headers, occurred_at, available_at)
  select g.seq, g.id, k.sink, k.attempts, k.stream, k.position, g.kind, g.ordering_key,
         g.payload, g.payload_bytes, g.content_type, g.headers, g.occurred_at, g.available_at
  from gone as g
  join locked as k on k.seq = g.seq
),
facts as (
  insert into {schema}.delivery as d (seq, sink, state, attempts, route, stream, position, kept)
  select k.seq, k.sink, 'published', k.attempts, array[k.sink], k.stream, k.position, false
  from locked as k
  where not k.held
  on conflict (seq, sink) do update
    set state = 'published', attempts = excluded.attempts, stream = excluded.stream, position = excluded.position,
        kept = false, next_at = null, last_error = null, updated_at = now()
    where d.state = 'retry'
)
select g.seq from gone as g cross join mode
