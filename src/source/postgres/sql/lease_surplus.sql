-- Gives back what this instance has beside these shards. Served by lease_pkey.
update {schema}.lease as l
set owner = null, expires_at = clock_timestamp(), in_hand = '{}', alone = false
where l.owner = $1 and l.shard <> all ($2::integer[])
