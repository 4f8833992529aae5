-- Rows that back off for one sink until a moment or later, earliest first; those that their writer delayed
-- beyond that are told by due_delayed.sql. Served by outbox_delivery_next.
-- ?1 sink, ?2 moment, ?3 limit
SELECT e.seq, CAST(e.ordering_key AS BLOB), typeof(e.ordering_key) = 'blob', CAST(d.next_at AS BLOB)
FROM outbox_delivery AS d
CROSS JOIN outbox_event AS e ON e.seq = d.seq
WHERE d.sink = ?1
    AND d.state = 'retry'
    AND d.next_at >= ?2
    AND rtrim(d.next_at, 'Z') > rtrim(e.available_at, 'Z')
ORDER BY d.next_at, d.seq
LIMIT ?3;
