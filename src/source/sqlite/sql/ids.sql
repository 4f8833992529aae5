-- The identity of rows. Served by the primary key.
-- ?1 seqs (JSON array)
SELECT seq, CAST(id AS BLOB) FROM outbox_event WHERE seq IN (SELECT value FROM json_each(?1));
