-- Shows until when the shards that these tokens hold are held, unless they are renewed.
-- ?1 [[shard, token], ...], ?2 expiry
UPDATE outbox_lease
SET expires_at = ?2
WHERE owner IS NOT NULL
    AND EXISTS (
        SELECT 1
        FROM json_each(?1) AS l
        WHERE l.value ->> 0 = outbox_lease.shard AND l.value ->> 1 = outbox_lease.token
    );
