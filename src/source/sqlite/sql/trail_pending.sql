-- A page of pending events, and whether the sink is done with each. Served by the primary keys.
-- ?1 above this seq, ?2 limit, ?3 sink
SELECT e.seq, CAST(e.kind AS BLOB), CAST(e.occurred_at AS BLOB), coalesce(d.state, 'retry') <> 'retry'
FROM outbox_event AS e
LEFT JOIN outbox_delivery AS d ON d.seq = e.seq AND d.sink = ?3
WHERE e.seq > ?1
ORDER BY e.seq
LIMIT ?2;
