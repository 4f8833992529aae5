-- Which of these events operators have requeued or dropped. Walks the audit.
-- ?1 seqs (JSON array)
SELECT DISTINCT s.value, a.action
FROM outbox_audit AS a
CROSS JOIN json_each(a.detail, '$.seqs') AS s
WHERE a.action IN ('requeue', 'drop') AND s.value IN (SELECT value FROM json_each(?1));
