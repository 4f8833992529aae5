-- Publishes that only their mark knows, because whoever reported them held no token: the history needs them
-- before the mark goes. Served by the primary key.
-- ?1 seqs (JSON array)
SELECT d.seq, CAST(e.id AS BLOB), d.sink, d.attempts, d.stream, d.position
FROM outbox_delivery AS d
CROSS JOIN outbox_event AS e ON e.seq = d.seq
WHERE d.seq IN (SELECT value FROM json_each(?1)) AND d.state = 'published' AND NOT d.kept;
