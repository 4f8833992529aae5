-- Instances that were killed and never came back, a slice at a time. A handful of rows.
-- ?1 moment, ?2 limit
DELETE FROM outbox_instance
WHERE instance IN (SELECT instance FROM outbox_instance WHERE seen_at <= ?1 LIMIT ?2);
