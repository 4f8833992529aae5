-- What is remembered about rows. Served by the primary key of outbox_delivery.
-- ?1 seqs (JSON array)
SELECT seq, sink, state FROM outbox_delivery WHERE seq IN (SELECT value FROM json_each(?1));
