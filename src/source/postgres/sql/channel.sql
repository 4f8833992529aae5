-- The channel that the wake triggers notify.
select 'outboxd_' || '{schema_text}.event'::regclass::oid::text
