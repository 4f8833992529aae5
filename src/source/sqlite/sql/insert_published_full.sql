-- The history of published events, whole. The rows are read by primary key, before their deletion.
-- ?1 [[seq, id, sink, attempts, stream, position], ...], ?2 now
INSERT INTO outbox_published (
    seq, id, sink, published_at, attempts, stream, position,
    kind, ordering_key, occurred_at, content_type, headers, payload, payload_bytes
)
SELECT
    e.seq, o.value ->> 1, o.value ->> 2, ?2, o.value ->> 3, o.value ->> 4, o.value ->> 5,
    e.kind, e.ordering_key, e.occurred_at, e.content_type, e.headers, e.payload, e.payload_bytes
FROM json_each(?1) AS o
CROSS JOIN outbox_event AS e ON e.seq = o.value ->> 0;
