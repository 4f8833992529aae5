-- Waking a listening relay, at no cost for writers while nobody listens.

-- The mark: seconds since 1970 until which writers shall notify. A sequence, because its value is read
-- outside transactions and needs no row lock, and a time, because a crash can then not leave it set.
create sequence {schema}.wake_until as bigint minvalue 0 start with 0 cache 1;

-- The trigger's condition runs with the writer's rights: a writer who inserts into the table itself may read the
-- mark, see grants_writer.sql. In the publish functions it runs with the owner's.
revoke all on sequence {schema}.wake_until from public;

-- The channel carries the oid of the event table, so that outboxes in one database do not wake each other.
create function {schema}.wake() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $outboxd$
begin
  perform pg_notify('outboxd_' || '{schema_text}.event'::regclass::oid::text, '');
  return null;
end
$outboxd$;
revoke all on function {schema}.wake() from public;

-- The mark is read in the condition: the function is not even called while nobody listens.
create trigger wake after insert on {schema}.event
  for each statement
  when (pg_catalog.pg_sequence_last_value('{schema_text}.wake_until'::regclass)
        > pg_catalog.date_part('epoch', pg_catalog.now())::bigint)
  execute function {schema}.wake();

-- Commands are rare and always wake.
create trigger wake after insert on {schema}.control
  for each statement execute function {schema}.wake();
