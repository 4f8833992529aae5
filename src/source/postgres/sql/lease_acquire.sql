-- Takes at most $3 shards that are this instance's own, free or expired, in this order, each under a fresh token. One
-- statement and the database's clock alone; a row that another takes meanwhile is looked at again after its lock and left.
-- A shard whose owner did not give it back was left by a death, with what was in hand. Rows are locked in shard order.
-- Served by lease_pkey.
with open as materialized (
  select l.shard
  from {schema}.lease as l
  where l.owner is null or l.owner = $1 or l.expires_at is null or l.expires_at <= clock_timestamp()
  order by l.owner is not distinct from $1 desc, l.shard
  limit $3
),
free as materialized (
  select l.shard
  from {schema}.lease as l
  where l.shard in (select o.shard from open as o)
    and (l.owner is null or l.owner = $1 or l.expires_at is null or l.expires_at <= clock_timestamp())
  order by l.shard
  for update of l
)
update {schema}.lease as l
set owner = $1,
    token = l.token + 1,
    acquired_at = clock_timestamp(),
    expires_at = clock_timestamp() + $2 * interval '1 microsecond',
    deaths = case
      when l.owner is null or l.owner = $1 then l.deaths
      when l.in_hand = '{}' then 1
      when l.alone then 3
      else 2
    end,
    suspects = case when l.owner is null or l.owner = $1 then l.suspects else l.in_hand end,
    in_hand = '{}',
    alone = false
from free as f
where l.shard = f.shard
returning l.shard, l.token
