-- The sinks of the requeued events are no longer done with them, and nothing is charged.
-- ?1 numbers (JSON array)
DELETE FROM outbox_delivery
WHERE (seq, sink) IN (
    SELECT seq, sink FROM outbox_discarded WHERE number IN (SELECT value FROM json_each(?1))
);
