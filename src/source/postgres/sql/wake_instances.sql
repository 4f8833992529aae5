-- Wakes every instance that listens, as a writer's insert does while the mark is set.
select pg_notify('outboxd_' || '{schema_text}.event'::regclass::oid::text, '')
