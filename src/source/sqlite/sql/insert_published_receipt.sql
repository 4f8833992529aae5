-- The history of published events, receipts only.
-- ?1 [[seq, id, sink, attempts, stream, position], ...], ?2 now
INSERT INTO outbox_published (seq, id, sink, published_at, attempts, stream, position)
SELECT
    o.value ->> 0, o.value ->> 1, o.value ->> 2, ?2, o.value ->> 3, o.value ->> 4, o.value ->> 5
FROM json_each(?1) AS o;
