-- Holds something back, unless that is held back already or too many things are. Served by the primary key.
-- ?1 scope, ?2 name, ?3 sink, ?4 who, ?5 reason, ?6 now, ?7 most
INSERT INTO outbox_pause (scope, name, sink, actor, reason, since)
SELECT ?1, ?2, ?3, ?4, ?5, ?6
WHERE (SELECT count(*) FROM outbox_pause) < ?7
ON CONFLICT (scope, name, sink) DO NOTHING;
