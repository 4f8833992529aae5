-- Events with marks above a seq: one row for each with each sink of the routes written beside its marks, and whether
-- that sink still waits for it. Served by the primary keys.
-- ?1 after, ?2 limit
SELECT DISTINCT
    p.seq,
    CAST(e.id AS BLOB),
    CAST(e.kind AS BLOB),
    CAST(e.ordering_key AS BLOB),
    typeof(e.ordering_key) = 'blob',
    r.value,
    coalesce(d.attempts, 0),
    d.last_error,
    e.seq IS NOT NULL AND coalesce(d.state, 'retry') = 'retry'
FROM (SELECT DISTINCT seq FROM outbox_delivery WHERE seq > ?1 ORDER BY seq LIMIT ?2) AS p
JOIN outbox_delivery AS m ON m.seq = p.seq
JOIN json_each(json_insert(m.route, '$[#]', m.sink)) AS r
LEFT JOIN outbox_event AS e ON e.seq = p.seq
LEFT JOIN outbox_delivery AS d ON d.seq = p.seq AND d.sink = r.value
ORDER BY p.seq, r.value;
