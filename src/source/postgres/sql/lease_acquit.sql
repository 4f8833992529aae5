-- Nothing is suspected any more of these shards, and nothing is in hand. Tokens that no longer hold change nothing.
-- Served by lease_pkey.
update {schema}.lease as l
set deaths = 0, suspects = '{}', in_hand = '{}', alone = false
from unnest($1::integer[], $2::bigint[]) as o (shard, token)
where l.shard = o.shard and l.token = o.token
