-- An incarnation of this instance died: its shards are free, left with what was in hand. Served by lease_pkey.
update {schema}.lease as l
set owner = null,
    expires_at = clock_timestamp(),
    deaths = case when l.in_hand = '{}' then 1 when l.alone then 3 else 2 end,
    suspects = l.in_hand,
    in_hand = '{}',
    alone = false
where l.owner = $1
