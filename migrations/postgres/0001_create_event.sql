-- The outbox itself, and the two functions that let a writer insert with nothing but EXECUTE.
--
-- {schema} is the quoted schema name, {schema_text} the same inside a string literal. Nothing here relies on
-- search_path, on an extension or on superuser. Every function has a search_path of its own, or a body that was parsed
-- with the migration's, so that nothing that somebody plants in another schema is ever called; and nothing is for
-- PUBLIC, whatever default privileges say.

-- A version 7 UUID (RFC 9562): 48 bits of milliseconds since 1970 laid over a random version 4, whose
-- version bits 0100 become 0111. Ids rise with time, so the unique index grows at its end. The body is parsed here and
-- now, so no later search_path matters; a "set search_path" would triple what a plain INSERT pays for its id.
create function {schema}.uuid_v7() returns uuid
language sql volatile parallel safe
return pg_catalog.encode(
  pg_catalog.set_bit(
    pg_catalog.set_bit(
      pg_catalog.overlay(
        pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
        pg_catalog.substring(
          pg_catalog.int8send(
            pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint
          ), 3),
        1, 6),
      52, 1),
    53, 1),
  'hex')::uuid;

-- Pending events only: inserted by writers, deleted by the relay, never updated.
create table {schema}.event (
  -- cache 1: a session that hoards numbers would show low ones long after higher ones were read.
  seq bigint generated always as identity (sequence name {schema}.event_seq cache 1) primary key,
  id uuid not null default {schema}.uuid_v7() unique,
  kind text not null,
  -- "C": equality and a stable order are all that is asked of it, and no upgrade of a locale library may
  -- bring the index out of order.
  ordering_key text collate "C"
    constraint event_ordering_key_check
    check (ordering_key <> '' and octet_length(ordering_key) <= 512),
  -- json, not jsonb: the text goes out as it was written.
  payload json,
  payload_bytes bytea,
  content_type text,
  headers jsonb not null default '{}',
  occurred_at timestamptz not null default now(),
  available_at timestamptz not null default now(),
  constraint event_payload_check check (num_nonnulls(payload, payload_bytes) = 1)
);

-- A key's own run, and the walk over key heads.
create index event_key on {schema}.event (ordering_key, seq);

-- Delayed rows by due time. Both columns default to now(), so an ordinary insert is not in this index.
create index event_delayed on {schema}.event (available_at) where available_at <> occurred_at;

-- The queue is emptied and refilled all day: clean up early, and in small pieces.
alter table {schema}.event set (
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_insert_scale_factor = 0.2,
  autovacuum_analyze_scale_factor = 0.1,
  autovacuum_vacuum_cost_delay = 1
);

create function {schema}.publish(
  kind text,
  payload json,
  ordering_key text default null,
  headers jsonb default '{}',
  available_at timestamptz default now(),
  id uuid default null
) returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $outboxd$
declare
  given uuid := coalesce($6, {schema}.uuid_v7());
begin
  insert into {schema}.event (id, kind, ordering_key, payload, headers, available_at)
  values (given, $1, $3, $2, coalesce($4, '{}'), coalesce($5, now()));
  return given;
end
$outboxd$;

create function {schema}.publish_bytes(
  kind text,
  payload bytea,
  content_type text default null,
  ordering_key text default null,
  headers jsonb default '{}',
  available_at timestamptz default now(),
  id uuid default null
) returns uuid
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $outboxd$
declare
  given uuid := coalesce($7, {schema}.uuid_v7());
begin
  insert into {schema}.event (id, kind, ordering_key, payload_bytes, content_type, headers, available_at)
  values (given, $1, $4, $2, $3, coalesce($5, '{}'), coalesce($6, now()));
  return given;
end
$outboxd$;

revoke all on {schema}.migration, {schema}.event from public;
revoke all on sequence {schema}.event_seq from public;
revoke all on function {schema}.uuid_v7() from public;
revoke all on function {schema}.publish(text, json, text, jsonb, timestamptz, uuid) from public;
revoke all on function {schema}.publish_bytes(text, bytea, text, text, jsonb, timestamptz, uuid) from public;
