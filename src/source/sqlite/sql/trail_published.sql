-- A page of the history, newest first, with whom each delivery was for. The order of numbers is the order of time.
-- Served by the primary key; payloads stand behind these columns and are not walked through.
-- ?1 below this number, ?2 limit
SELECT number, seq, CAST(id AS BLOB), sink, published_at, stream, position, CAST(ordering_key AS BLOB)
FROM outbox_published
WHERE number < ?1
ORDER BY number DESC
LIMIT ?2;
