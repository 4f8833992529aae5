-- What is remembered about events and sinks. Served by the primary key.
-- ?1 [[seq, sink, state, attempts, next_at, error, route, stream, position, kept], ...], ?2 now
INSERT INTO outbox_delivery (
    seq, sink, state, attempts, next_at, last_error, route, stream, position, kept, updated_at
)
SELECT
    o.value ->> 0, o.value ->> 1, o.value ->> 2, o.value ->> 3, o.value ->> 4, o.value ->> 5,
    o.value ->> 6, o.value ->> 7, o.value ->> 8, o.value ->> 9, ?2
FROM json_each(?1) AS o
WHERE true
ON CONFLICT (seq, sink) DO UPDATE SET
    state = excluded.state,
    attempts = excluded.attempts,
    next_at = excluded.next_at,
    last_error = coalesce(excluded.last_error, last_error),
    route = excluded.route,
    stream = excluded.stream,
    position = excluded.position,
    kept = excluded.kept,
    updated_at = excluded.updated_at;
