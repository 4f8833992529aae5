-- How many events were set aside for a sink in a span of time. Walks them.
-- ?1 sink, ?2 from this moment on, ?3 up to that one
SELECT count(*) FROM outbox_discarded WHERE sink = ?1 AND discarded_at >= ?2 AND discarded_at < ?3;
