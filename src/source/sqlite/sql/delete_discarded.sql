-- Discarded events leave the table. Served by the primary key.
-- ?1 numbers (JSON array)
DELETE FROM outbox_discarded WHERE number IN (SELECT value FROM json_each(?1));
