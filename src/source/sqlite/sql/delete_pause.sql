-- Lets something go on. Served by the primary key.
-- ?1 scope, ?2 name, ?3 sink
DELETE FROM outbox_pause WHERE scope = ?1 AND name = ?2 AND sink = ?3;
