-- The shards whose last owners died, with what they had in hand. A handful of rows.
SELECT shard, token, deaths, suspects FROM outbox_lease WHERE deaths > 0;
