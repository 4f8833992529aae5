-- Is this held back? Served by the primary key.
-- ?1 scope, ?2 name, ?3 sink
SELECT EXISTS (SELECT 1 FROM outbox_pause WHERE scope = ?1 AND name = ?2 AND sink = ?3);
