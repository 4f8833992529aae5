-- An instance leaves. Served by the primary key.
-- ?1 instance
DELETE FROM outbox_instance WHERE instance = ?1;
