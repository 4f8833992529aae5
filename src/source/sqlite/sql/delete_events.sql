-- Finished rows leave. Served by the primary key.
-- ?1 seqs (JSON array)
DELETE FROM outbox_event WHERE seq IN (SELECT value FROM json_each(?1));
