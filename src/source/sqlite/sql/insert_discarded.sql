-- Sets events aside, whole. The rows are read by primary key, before their deletion.
-- ?1 [[seq, id, sink, reason, code, attempts, error, route], ...], ?2 now
INSERT INTO outbox_discarded (
    seq, id, sink, discarded_at, reason, code, attempts, last_error, route,
    kind, ordering_key, occurred_at, available_at, content_type, headers, payload, payload_bytes
)
SELECT
    e.seq, o.value ->> 1, o.value ->> 2, ?2, o.value ->> 3, o.value ->> 4, o.value ->> 5,
    o.value ->> 6, o.value ->> 7,
    e.kind, e.ordering_key, e.occurred_at, e.available_at, e.content_type, e.headers,
    e.payload, e.payload_bytes
FROM json_each(?1) AS o
CROSS JOIN outbox_event AS e ON e.seq = o.value ->> 0
WHERE true
ON CONFLICT (seq, sink) DO UPDATE SET
    discarded_at = excluded.discarded_at,
    reason = excluded.reason,
    code = excluded.code,
    attempts = excluded.attempts,
    last_error = excluded.last_error,
    route = excluded.route;
