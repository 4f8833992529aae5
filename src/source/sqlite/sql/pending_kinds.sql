-- Distinct kinds among the oldest pending events, a bounded number of them.
-- ?1 limit
SELECT DISTINCT CAST(kind AS BLOB)
FROM (SELECT kind FROM outbox_event ORDER BY seq LIMIT 10000)
LIMIT ?1;
