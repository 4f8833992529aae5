-- Rows that their writer delayed to a moment or later, earliest first, for one sink; those that back off
-- beyond that are told by due_backing_off.sql. Served by outbox_event_delayed.
-- ?1 sink, ?2 moment without trailing zeros and Z, ?3 limit
SELECT e.seq, CAST(e.ordering_key AS BLOB), typeof(e.ordering_key) = 'blob', CAST(e.available_at AS BLOB)
FROM outbox_event AS e
LEFT JOIN outbox_delivery AS d ON d.seq = e.seq AND d.sink = ?1
WHERE e.available_at <> e.occurred_at
    AND rtrim(e.available_at, 'Z') >= ?2
    AND coalesce(d.state, 'retry') = 'retry'
    AND coalesce(rtrim(d.next_at, 'Z'), '') <= rtrim(e.available_at, 'Z')
ORDER BY rtrim(e.available_at, 'Z'), e.seq
LIMIT ?3;
