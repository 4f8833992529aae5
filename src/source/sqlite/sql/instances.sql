-- Instances with a sign of life since a moment. A handful of rows.
-- ?1 moment
SELECT instance, host, version, listening, report, seen_at
FROM outbox_instance
WHERE seen_at >= ?1
ORDER BY instance;
