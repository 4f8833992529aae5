-- One slice of the sweep over keys: each next key with its first row that is not done for the sink. A skip
-- scan: served by outbox_event_key, one seek a key, whatever stands behind its head.
-- ?1 sink, ?2 last key as bytes (NULL: from the first), ?3 that key is a blob, ?4 number of keys,
-- ?5 now without trailing zeros and Z
WITH RECURSIVE keys (ordering_key) AS (
    SELECT * FROM (
        SELECT CASE
            WHEN ?2 IS NULL THEN (
                SELECT min(ordering_key) FROM outbox_event WHERE ordering_key IS NOT NULL
            )
            WHEN ?3 THEN (SELECT min(ordering_key) FROM outbox_event WHERE ordering_key > ?2)
            ELSE (
                SELECT min(ordering_key) FROM outbox_event WHERE ordering_key > CAST(?2 AS TEXT)
            )
        END
    )
    UNION ALL
    SELECT (
        SELECT min(e.ordering_key) FROM outbox_event AS e WHERE e.ordering_key > keys.ordering_key
    )
    FROM keys
    WHERE keys.ordering_key IS NOT NULL
    LIMIT ?4
)
SELECT
    CAST(k.ordering_key AS BLOB),
    typeof(k.ordering_key) = 'blob',
    e.seq,
    CAST(e.kind AS BLOB),
    d.skip IS NOT NULL
        OR (rtrim(e.available_at, 'Z') <= ?5 AND coalesce(rtrim(d.next_at, 'Z'), '') <= ?5)
FROM keys AS k
LEFT JOIN outbox_event AS e ON e.seq = (
    SELECT r.seq
    FROM outbox_event AS r
    LEFT JOIN outbox_delivery AS m ON m.seq = r.seq AND m.sink = ?1
    WHERE r.ordering_key = k.ordering_key AND coalesce(m.state, 'retry') = 'retry'
    ORDER BY r.seq
    LIMIT 1
)
LEFT JOIN outbox_delivery AS d ON d.seq = e.seq AND d.sink = ?1
WHERE k.ordering_key IS NOT NULL;
