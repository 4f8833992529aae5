-- The facts that were fixed by the first migration.
SELECT name, CAST(value AS TEXT) FROM outbox_setting;
