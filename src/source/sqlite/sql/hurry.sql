-- Makes backed-off events due at once; one that was blocked, so far in the future that nothing else explains it,
-- gets a fresh budget. Served by the primary key.
-- ?1 [[seq, sink], ...], ?2 now, ?3 the moment beyond which it is blocked
UPDATE outbox_delivery
SET next_at = ?2, attempts = CASE WHEN next_at > ?3 THEN 0 ELSE attempts END
WHERE (seq, sink) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))
    AND state = 'retry'
    AND next_at > ?2;
