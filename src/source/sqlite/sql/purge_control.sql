-- Commands that every owner has read long ago. Served by the primary key.
-- ?1 moment, ?2 limit
DELETE FROM outbox_control
WHERE number IN (SELECT number FROM outbox_control ORDER BY number LIMIT ?2)
    AND at <= ?1;
