-- Commands above a number, in order. Served by the primary key.
-- ?1 after, ?2 limit
SELECT number, verb, seqs FROM outbox_control WHERE number > ?1 ORDER BY number LIMIT ?2;
