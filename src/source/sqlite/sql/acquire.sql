-- Takes every shard under fresh tokens; the file lock has decided that nobody else may. A shard whose owner did not give
-- it back was left by a death, with what was in hand.
-- ?1 owner, ?2 expiry
UPDATE outbox_lease
SET owner = ?1, token = token + 1, expires_at = ?2,
    deaths = CASE
        WHEN owner IS NULL OR owner = ?1 THEN deaths
        WHEN in_hand = '[]' THEN 1
        WHEN alone THEN 3
        ELSE 2
    END,
    suspects = CASE WHEN owner IS NULL OR owner = ?1 THEN suspects ELSE in_hand END,
    in_hand = '[]', alone = 0
RETURNING shard, token;
