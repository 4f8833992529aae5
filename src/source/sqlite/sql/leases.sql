-- Every shard. A handful of rows.
SELECT shard, owner, token, expires_at FROM outbox_lease ORDER BY shard;
