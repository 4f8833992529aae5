-- Who did what, and why.
-- ?1 now, ?2 who, ?3 action, ?4 reason, ?5 detail (JSON)
INSERT INTO outbox_audit (at, actor, action, reason, detail) VALUES (?1, ?2, ?3, ?4, ?5);
