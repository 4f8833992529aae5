-- Candidates for a key whose bytes are no UTF-8 text, and which therefore cannot be asked for as it is
-- stored: every row whose key starts with the readable part or sorts behind it. Served by outbox_event_key;
-- costs more than any other read, and only such keys pay it.
-- ?1 readable part, ?2 from seq
SELECT seq, CAST(ordering_key AS BLOB), typeof(ordering_key) = 'blob'
FROM outbox_event
WHERE ordering_key >= ?1 AND seq >= ?2;
