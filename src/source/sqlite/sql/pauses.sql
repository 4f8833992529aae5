-- What operators hold back, at most so many. Small: its number is bounded where it is written.
-- ?1 limit
SELECT scope, name, sink, actor, reason, since FROM outbox_pause ORDER BY scope, name, sink LIMIT ?1;
