-- One row without a key, unless the sink is done with it. Served by the primary key.
-- ?1 sink, ?2 seq
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
WHERE e.seq = ?2 AND e.ordering_key IS NULL AND coalesce(d.state, 'retry') = 'retry';
