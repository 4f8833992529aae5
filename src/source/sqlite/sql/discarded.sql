-- Discarded events that match every condition given, newest first. Walks the table backwards.
-- ?1 ids (JSON array), ?2 sink, ?3 kind, ?4 prefix of the kind, ?5 key, ?6 reason, ?7 code,
-- ?8 set aside until this moment, ?9 limit
SELECT
    seq,
    CAST(id AS BLOB),
    sink,
    CAST(kind AS BLOB),
    CAST(ordering_key AS BLOB),
    reason,
    code,
    last_error,
    attempts,
    discarded_at,
    coalesce(octet_length(payload), octet_length(payload_bytes), 0),
    CAST(payload AS BLOB),
    CAST(payload_bytes AS BLOB),
    CAST(headers AS BLOB)
FROM outbox_discarded
WHERE (?1 IS NULL OR id IN (SELECT value FROM json_each(?1)))
    AND (?2 IS NULL OR sink = ?2)
    AND (?3 IS NULL OR kind = ?3)
    AND (?4 IS NULL OR substr(kind, 1, length(?4)) = ?4)
    AND (?5 IS NULL OR ordering_key = ?5)
    AND (?6 IS NULL OR reason = ?6)
    AND (?7 IS NULL OR code = ?7)
    AND (?8 IS NULL OR discarded_at <= ?8)
ORDER BY number DESC
LIMIT ?9;
