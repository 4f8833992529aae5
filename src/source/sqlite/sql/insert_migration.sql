-- A migration has run.
-- ?1 version, ?2 name
INSERT INTO outbox_migration (version, name) VALUES (?1, ?2);
