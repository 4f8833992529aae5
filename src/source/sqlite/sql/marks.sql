-- What is remembered about rows, and what the history lacks of it (the fourth column is null where it lacks nothing).
-- Served by the primary key of outbox_delivery.
-- ?1 seqs (JSON array)
SELECT seq, sink, state, CASE WHEN state = 'published' AND NOT kept THEN attempts END, stream, position
FROM outbox_delivery
WHERE seq IN (SELECT value FROM json_each(?1));
