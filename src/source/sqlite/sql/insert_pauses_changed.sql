-- Tells the owner that something was paused or resumed.
-- ?1 who, ?2 now
INSERT INTO outbox_control (verb, actor, at) VALUES ('pauses', ?1, ?2);
