-- Asks writers to notify for the coming $1 seconds; never shortens what another instance asked for. Zero
-- withdraws. Not transactional: it holds at once.
select setval(
  '{schema_text}.wake_until'::regclass,
  case when $1 = 0 then 0
       else greatest(date_part('epoch', clock_timestamp())::bigint + $1,
                     (select w.last_value from {schema}.wake_until as w))
  end
)
