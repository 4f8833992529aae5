-- This instance wants a share of the shards for so long, and is idle or not. Host and version come with its sign of life. Served by
-- instance_pkey.
insert into {schema}.instance as i (instance, host, version, listening, claims_until, idle)
values ($1, '', '', false, clock_timestamp() + $2 * interval '1 microsecond', $3)
on conflict (instance) do update set claims_until = excluded.claims_until, idle = excluded.idle
