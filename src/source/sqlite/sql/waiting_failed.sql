-- Failed events and those to be skipped, blocked ones first, with what stands behind each, counted up to a bound.
-- Served by outbox_delivery_next (of one sink; of all, a walk over what has failed).
-- ?1 sink (NULL: all), ?2 limit, ?3 most behind
SELECT
    e.seq,
    CAST(e.id AS BLOB),
    CAST(e.kind AS BLOB),
    CAST(e.ordering_key AS BLOB),
    CAST(e.occurred_at AS BLOB),
    CAST(e.available_at AS BLOB),
    d.attempts,
    d.next_at,
    d.last_error,
    d.updated_at,
    d.skip,
    d.sink,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM outbox_event AS o
            WHERE o.ordering_key = e.ordering_key AND o.seq > e.seq
            LIMIT ?3
        )
    )
FROM outbox_delivery AS d
CROSS JOIN outbox_event AS e ON e.seq = d.seq
WHERE d.state = 'retry' AND (?1 IS NULL OR d.sink = ?1)
ORDER BY d.next_at IS NOT NULL, d.next_at DESC, d.seq
LIMIT ?2;
