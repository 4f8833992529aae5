-- Gives shards back; the token stays, so that it only ever grows. Tokens that no longer hold change nothing.
-- Served by lease_pkey.
update {schema}.lease as l
set owner = null, expires_at = clock_timestamp(), in_hand = '{}', alone = false
from unnest($1::integer[], $2::bigint[]) as o (shard, token)
where l.shard = o.shard and l.token = o.token
