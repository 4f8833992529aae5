-- How many instances want a share of the shards, how many of them were there before this one, how many shards are free,
-- for how many seconds the first of those has been, and how many other instances have something to do. Two whole, small
-- tables.
select m.members, m.before, l.free, l.free_for, m.busy
from (
  select count(*) as members, count(*) filter (where (i.started_at, i.instance) < (me.started_at, me.instance)) as before,
         count(*) filter (where i.instance <> $1 and not i.idle) as busy
  from {schema}.instance as i
  left join {schema}.instance as me on me.instance = $1
  where i.claims_until > clock_timestamp()
) as m,
(
  select count(*) as free,
         coalesce(
           max(date_part('epoch', clock_timestamp() - coalesce(l.expires_at, l.acquired_at, clock_timestamp()))),
           0
         ) as free_for
  from {schema}.lease as l
  where l.owner is null or l.expires_at is null or l.expires_at <= clock_timestamp()
) as l
