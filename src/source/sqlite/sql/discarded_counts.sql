-- Discarded events per sink. Walks the index outbox_discarded_seq.
SELECT sink, count(*) FROM outbox_discarded GROUP BY sink ORDER BY sink;
