-- Frees the shards that these tokens still hold.
-- ?1 [[shard, token], ...], ?2 now
UPDATE outbox_lease
SET owner = NULL, expires_at = ?2, in_hand = '[]', alone = 0
WHERE EXISTS (
    SELECT 1
    FROM json_each(?1) AS l
    WHERE l.value ->> 0 = outbox_lease.shard AND l.value ->> 1 = outbox_lease.token
);
