-- Of these shards, those whose last owners died, with what they had in hand. Served by lease_pkey.
select l.shard, l.token, l.deaths, l.suspects
from {schema}.lease as l
join unnest($1::integer[], $2::bigint[]) as o (shard, token) on o.shard = l.shard and o.token = l.token
where l.deaths > 0
order by l.shard
