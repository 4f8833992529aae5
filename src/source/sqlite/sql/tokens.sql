-- The token that holds each shard. A handful of rows.
SELECT shard, token FROM outbox_lease WHERE owner IS NOT NULL;
