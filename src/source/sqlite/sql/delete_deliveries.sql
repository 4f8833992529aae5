-- Nothing is remembered about rows that left. Served by the primary key.
-- ?1 seqs (JSON array)
DELETE FROM outbox_delivery WHERE seq IN (SELECT value FROM json_each(?1));
