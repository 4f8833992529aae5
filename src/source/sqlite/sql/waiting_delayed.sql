-- Delayed heads of keys, the next due first, with what stands behind each, counted up to a bound; of so many
-- delayed rows. Served by outbox_event_delayed, outbox_event_key and the primary keys.
-- ?1 now without trailing zeros and Z, ?2 limit, ?3 most behind, ?4 rows looked at
SELECT
    e.seq,
    CAST(e.id AS BLOB),
    CAST(e.kind AS BLOB),
    CAST(e.ordering_key AS BLOB),
    CAST(e.occurred_at AS BLOB),
    CAST(e.available_at AS BLOB),
    0,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM outbox_event AS o
            WHERE o.ordering_key = e.ordering_key AND o.seq > e.seq
            LIMIT ?3
        )
    )
FROM (
    SELECT seq, ordering_key
    FROM outbox_event
    WHERE available_at <> occurred_at AND rtrim(available_at, 'Z') > ?1
    ORDER BY rtrim(available_at, 'Z')
    LIMIT ?4
) AS h
CROSS JOIN outbox_event AS e ON e.seq = h.seq
WHERE NOT EXISTS (
        SELECT 1 FROM outbox_event AS o WHERE o.ordering_key = h.ordering_key AND o.seq < h.seq
    )
    AND NOT EXISTS (SELECT 1 FROM outbox_delivery AS d WHERE d.seq = h.seq AND d.state = 'retry')
LIMIT ?2;
