-- Rows by seq for one sink, those that are done left out; bodies of every size when ?5 is true.
-- Served by the primary key.
-- ?1 sink, ?2 now, ?3 largest body, ?4 seqs (JSON array), ?5 bodies whatever their size and due time
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
        ?5 OR (coalesce(d.state, '') IN ('', 'retry')
            AND (
                d.skip IS NOT NULL
                OR (rtrim(e.available_at, 'Z') <= rtrim(?2, 'Z') AND coalesce(d.next_at, '') <= ?2)
            )
            AND coalesce(octet_length(e.payload), octet_length(e.payload_bytes), 0) <= ?3) AS wanted
    FROM outbox_event AS e
    LEFT JOIN outbox_delivery AS d ON d.seq = e.seq AND d.sink = ?1
    WHERE e.seq IN (SELECT value FROM json_each(?4))
        AND coalesce(d.state, 'retry') = 'retry'
) AS w
CROSS JOIN outbox_event AS e ON e.seq = w.seq;
