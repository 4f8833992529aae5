-- One event, as any application would write it, with every column given.
-- ?1 id, ?2 kind, ?3 ordering key, ?4 occurred at, ?5 available at, ?6 content type, ?7 headers, ?8 payload,
-- ?9 payload bytes
INSERT INTO outbox_event (
    id, kind, ordering_key, occurred_at, available_at, content_type, headers, payload, payload_bytes
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);
