-- A page of marks "published" of a sink beside events that are still there. Served by outbox_delivery_done.
-- ?1 sink, ?2 above this seq, ?3 limit
SELECT d.seq, CAST(e.id AS BLOB), d.updated_at, d.stream, d.position, CAST(e.ordering_key AS BLOB)
FROM outbox_delivery AS d
CROSS JOIN outbox_event AS e ON e.seq = d.seq
WHERE d.sink = ?1 AND d.state <> 'retry' AND d.state = 'published' AND d.seq > ?2
ORDER BY d.seq
LIMIT ?3;
