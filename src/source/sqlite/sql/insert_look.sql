-- Tells owners that rows re-entered behind their cursor.
-- ?1 seqs (JSON array), ?2 who, ?3 now
INSERT INTO outbox_control (verb, seqs, actor, at) VALUES ('look', ?1, ?2, ?3);
