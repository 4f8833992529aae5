-- Events that left come back for some sinks only: the other sinks of their route are done with them. Runs
-- before the rows are back, because a row that never left has its marks already.
-- ?1 numbers (JSON array), ?2 now
INSERT INTO outbox_delivery (seq, sink, state, attempts, route, updated_at)
SELECT DISTINCT
    x.seq,
    r.value,
    CASE WHEN EXISTS (
        SELECT 1 FROM outbox_discarded AS o WHERE o.seq = x.seq AND o.sink = r.value
    ) THEN 'discarded' ELSE 'published' END,
    0,
    x.route,
    ?2
FROM outbox_discarded AS x
CROSS JOIN json_each(x.route) AS r
WHERE x.number IN (SELECT value FROM json_each(?1))
    AND NOT EXISTS (SELECT 1 FROM outbox_event AS e WHERE e.seq = x.seq)
ON CONFLICT (seq, sink) DO NOTHING;
