-- Rows for which all these sinks, and all of the route that the mark was written under, are done. The route
-- counts because another route may lead to some of these sinks and to one more that still waits.
-- Served by outbox_delivery_done.
-- ?1 the first sink, ?2 all of them (JSON array), ?3 limit
SELECT d.seq
FROM outbox_delivery AS d
WHERE d.sink = ?1
    AND d.state <> 'retry'
    AND NOT EXISTS (
        SELECT 1
        FROM (SELECT value FROM json_each(?2) UNION SELECT value FROM json_each(d.route)) AS sinks
        WHERE NOT EXISTS (
            SELECT 1
            FROM outbox_delivery AS o
            WHERE o.seq = d.seq AND o.sink = sinks.value AND o.state <> 'retry'
        )
    )
ORDER BY d.seq
LIMIT ?3;
