-- Takes every shard under fresh tokens; the file lock has decided that nobody else may.
-- ?1 owner, ?2 expiry
UPDATE outbox_lease SET owner = ?1, token = token + 1, expires_at = ?2 RETURNING shard, token;
