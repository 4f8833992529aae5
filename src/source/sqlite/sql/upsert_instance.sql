-- A sign of life; the last one counts. Served by the primary key.
-- ?1 instance, ?2 host, ?3 version, ?4 listening, ?5 report, ?6 now
INSERT INTO outbox_instance (instance, host, version, listening, report, started_at, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)
ON CONFLICT (instance) DO UPDATE SET
    host = excluded.host,
    version = excluded.version,
    listening = excluded.listening,
    report = excluded.report,
    seen_at = excluded.seen_at;
