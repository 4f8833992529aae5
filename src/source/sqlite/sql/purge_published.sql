-- Removes what is past its age, oldest first, a slice at a time. Served by the primary key, whose order is
-- the order of time.
-- ?1 moment, ?2 limit
DELETE FROM outbox_published
WHERE number IN (SELECT number FROM outbox_published ORDER BY number LIMIT ?2)
    AND published_at <= ?1;
