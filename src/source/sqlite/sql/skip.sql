-- Marks pending events to be set aside for one sink each; what that sink is done with stays as it is. Served by
-- the primary keys.
-- ?1 [[seq, sink], ...], ?2 the words, ?3 now
INSERT INTO outbox_delivery (seq, sink, state, attempts, skip, updated_at)
SELECT e.seq, p.value ->> 1, 'retry', 0, ?2, ?3
FROM json_each(?1) AS p
CROSS JOIN outbox_event AS e ON e.seq = p.value ->> 0
WHERE true
ON CONFLICT (seq, sink) DO UPDATE SET skip = excluded.skip WHERE state = 'retry';
