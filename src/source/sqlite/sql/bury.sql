-- An incarnation of this instance died: its shards are free, left with what was in hand.
-- ?1 instance
UPDATE outbox_lease
SET owner = NULL,
    deaths = CASE WHEN in_hand = '[]' THEN 1 WHEN alone THEN 3 ELSE 2 END,
    suspects = in_hand, in_hand = '[]', alone = 0
WHERE owner = ?1;
