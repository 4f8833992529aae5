-- Events that left come back under their own seq, byte for byte.
-- ?1 numbers (JSON array)
INSERT INTO outbox_event (
    seq, id, kind, ordering_key, occurred_at, available_at, content_type, headers, payload, payload_bytes
)
SELECT
    x.seq, x.id, x.kind, x.ordering_key, x.occurred_at, x.available_at, x.content_type, x.headers,
    x.payload, x.payload_bytes
FROM outbox_discarded AS x
WHERE x.number IN (
        SELECT min(first.number)
        FROM outbox_discarded AS first
        WHERE first.number IN (SELECT value FROM json_each(?1))
        GROUP BY first.seq
    )
    AND NOT EXISTS (SELECT 1 FROM outbox_event AS e WHERE e.seq = x.seq);
