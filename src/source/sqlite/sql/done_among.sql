-- The same question as done.sql about some rows, asked again under the write lock.
-- ?1 the first sink, ?2 all of them (JSON array), ?3 seqs (JSON array)
SELECT d.seq
FROM outbox_delivery AS d
WHERE d.seq IN (SELECT value FROM json_each(?3))
    AND d.sink = ?1
    AND d.state <> 'retry'
    AND NOT EXISTS (
        SELECT 1
        FROM (SELECT value FROM json_each(?2) UNION SELECT value FROM json_each(d.route)) AS sinks
        WHERE NOT EXISTS (
            SELECT 1
            FROM outbox_delivery AS o
            WHERE o.seq = d.seq AND o.sink = sinks.value AND o.state <> 'retry'
        )
    );
