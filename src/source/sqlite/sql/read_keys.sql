-- Runs of keys for one sink: of each key its lowest rows from a seq on that are not done, at most so many.
-- Served by outbox_event_key: each key is a seek, and a run is read in its order.
-- ?1 sink, ?2 now, ?3 largest body, ?4 [[key, from], ...], ?5 rows of each key
SELECT
    e.seq,
    CAST(e.id AS BLOB),
    CAST(e.kind AS BLOB),
    CAST(e.ordering_key AS BLOB),
    typeof(e.ordering_key) = 'blob',
    CAST(e.available_at AS BLOB),
    w.state,
    w.attempts,
    w.next_at,
    coalesce(octet_length(e.payload), octet_length(e.payload_bytes), 0),
    e.payload IS NOT NULL,
    CASE WHEN w.wanted THEN CAST(coalesce(e.payload, e.payload_bytes, x'') AS BLOB) END,
    CASE WHEN w.wanted THEN CAST(e.content_type AS BLOB) END,
    CASE WHEN w.wanted THEN CAST(e.headers AS BLOB) END,
    CASE WHEN w.wanted THEN CAST(e.occurred_at AS BLOB) END,
    w.skip
FROM (
    SELECT
        e.seq,
        d.state,
        d.attempts,
        d.next_at,
        d.skip,
        coalesce(d.state, '') IN ('', 'retry')
            AND (
                d.skip IS NOT NULL
                OR (rtrim(e.available_at, 'Z') <= rtrim(?2, 'Z') AND coalesce(d.next_at, '') <= ?2)
            )
            AND coalesce(octet_length(e.payload), octet_length(e.payload_bytes), 0) <= ?3 AS wanted
    FROM json_each(?4) AS k
    CROSS JOIN outbox_event AS e ON e.seq IN (
        SELECT r.seq
        FROM outbox_event AS r
        LEFT JOIN outbox_delivery AS m ON m.seq = r.seq AND m.sink = ?1
        WHERE r.ordering_key = k.value ->> 0
            AND r.seq >= k.value ->> 1
            AND coalesce(m.state, 'retry') = 'retry'
        ORDER BY r.seq
        LIMIT ?5
    )
    LEFT JOIN outbox_delivery AS d ON d.seq = e.seq AND d.sink = ?1
) AS w
CROSS JOIN outbox_event AS e ON e.seq = w.seq;
