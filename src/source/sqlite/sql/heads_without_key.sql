-- One slice of the sweep over rows without a key; rows that are done for the sink are told as such, so that
-- a slice is so many rows and not so many findings. Served by outbox_event_key.
-- ?1 sink, ?2 after seq, ?3 limit, ?4 now without trailing zeros and Z
SELECT
    e.seq,
    CAST(e.kind AS BLOB),
    coalesce(d.state, 'retry') <> 'retry',
    d.skip IS NOT NULL
        OR (rtrim(e.available_at, 'Z') <= ?4 AND coalesce(rtrim(d.next_at, 'Z'), '') <= ?4)
FROM outbox_event AS e
LEFT JOIN outbox_delivery AS d ON d.seq = e.seq AND d.sink = ?1
WHERE e.ordering_key IS NULL AND e.seq > ?2
ORDER BY e.seq
LIMIT ?3;
