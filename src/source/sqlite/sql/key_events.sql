-- The first rows of a key that a sink is not done with, in order. Served by outbox_event_key.
-- ?1 sink, ?2 key, ?3 limit
SELECT
    e.seq,
    CAST(e.id AS BLOB),
    CAST(e.kind AS BLOB),
    CAST(e.ordering_key AS BLOB),
    CAST(e.occurred_at AS BLOB),
    CAST(e.available_at AS BLOB),
    coalesce(d.attempts, 0),
    d.next_at,
    d.last_error,
    d.updated_at,
    d.skip
FROM outbox_event AS e
LEFT JOIN outbox_delivery AS d ON d.seq = e.seq AND d.sink = ?1
WHERE e.ordering_key = ?2 AND coalesce(d.state, 'retry') = 'retry'
ORDER BY e.seq
LIMIT ?3;
