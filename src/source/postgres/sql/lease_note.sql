-- Notes what is in hand of these shards: the seqs of $4, each in the shard of $3; nothing where the token no longer
-- holds. Served by lease_pkey.
update {schema}.lease as l
set in_hand = coalesce(
      (select array_agg(s.seq order by s.seq)
       from unnest($3::integer[], $4::bigint[]) as s (shard, seq)
       where s.shard = l.shard),
      '{}'
    ),
    alone = $5
from unnest($1::integer[], $2::bigint[]) as o (shard, token)
where l.shard = o.shard and l.token = o.token
