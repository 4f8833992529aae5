-- Tells owners that rows re-entered behind their cursor (look), or need no longer wait (hurry).
-- ?1 seqs (JSON array), ?2 who, ?3 now, ?4 look or hurry
INSERT INTO outbox_control (verb, seqs, actor, at) VALUES (?4, ?1, ?2, ?3);
