-- Forward read for one sink: every row above a seq, in order, whether or not it is done or due, so that a
-- missing number is a gap and not a row. Served by the primary key; the delivery row by its own.
-- Every text is cast to bytes, because a column may hold text that is no UTF-8. The comparison of times
-- here only saves bodies: whether a row is due is decided where the text was parsed.
-- ?1 sink, ?2 now, ?3 largest body, ?4 after, ?5 keys without bodies (JSON array), ?6 most rows, ?7 most bodies:
-- the row that fills either is the last.
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
    SELECT *, sum(wanted) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS bodies
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
                AND coalesce(octet_length(e.payload), octet_length(e.payload_bytes), 0) <= ?3
                AND (e.ordering_key IS NULL OR e.ordering_key NOT IN (SELECT value FROM json_each(?5))) AS wanted
        FROM outbox_event AS e
        LEFT JOIN outbox_delivery AS d ON d.seq = e.seq AND d.sink = ?1
        WHERE e.seq > ?4
        ORDER BY e.seq
        LIMIT ?6
    )
) AS w
CROSS JOIN outbox_event AS e ON e.seq = w.seq
WHERE w.bodies - w.wanted < ?7;
