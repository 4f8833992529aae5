-- How many rows are pending, counted up to a bound.
-- ?1 bound + 1
SELECT count(*) FROM (SELECT 1 FROM outbox_event LIMIT ?1);
