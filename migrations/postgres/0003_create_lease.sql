-- Who owns which slice of the keys, who is alive, and what operators ask for.

-- One row: what every instance must agree on.
create table {schema}.settings (
  one boolean primary key default true constraint settings_one_check check (one),
  shards integer not null constraint settings_shards_check check (shards between 1 and 65535),
  algorithm text not null
);
insert into {schema}.settings (shards, algorithm) values ({shards}, '{algorithm}');

create table {schema}.lease (
  shard integer primary key,
  owner uuid,
  -- Fences: grows with every acquisition and never falls.
  token bigint not null default 0,
  expires_at timestamptz,
  acquired_at timestamptz,
  -- What a careful owner has in hand, and whether that is one event alone; for whoever takes over, should it die.
  in_hand bigint[] not null default '{}',
  alone boolean not null default false,
  -- Owners that died in a row: the first with anything in hand, the second with these, the third with one of them alone.
  deaths integer not null default 0,
  suspects bigint[] not null default '{}'
) with (fillfactor = 50);
insert into {schema}.lease (shard) select n from generate_series(0, {shards} - 1) as n;

create table {schema}.instance (
  instance uuid primary key,
  host text not null,
  version text not null,
  listening boolean not null,
  report jsonb not null default '{}',
  started_at timestamptz not null default now(),
  seen_at timestamptz not null default now(),
  -- Until when it wants a share of the shards; null: it does not.
  claims_until timestamptz,
  -- It has nothing to do: with `quiet_after`, all fall quiet together or none.
  idle boolean not null default false
) with (fillfactor = 50);

-- Operators' commands, read by every claimer with each poll.
create table {schema}.control (
  id bigint generated always as identity (sequence name {schema}.control_id_seq) primary key,
  command text not null,
  payload jsonb not null default '{}',
  created_by text,
  created_at timestamptz not null default now()
);

-- Claimers read `id > last seen`, so ids must become visible in their order: whoever inserts a command waits
-- for the one before. Commands are rare.
create function {schema}.control_order() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $outboxd$
begin
  perform pg_advisory_xact_lock(hashtextextended('outboxd control of {schema_text}', 0));
  return null;
end
$outboxd$;
revoke all on function {schema}.control_order() from public;
create trigger control_order before insert on {schema}.control
  for each statement execute function {schema}.control_order();

-- What operators hold back. A table of its own beside control, because a pause is state and a command is news:
-- control is read from a mark on and purged, a pause has to be found whole by whoever takes over, however
-- long it has stood. A change of it adds the command `pauses` to control, which wakes the owners and makes
-- them read this table again.
create table {schema}.pause (
  scope text not null constraint pause_scope_check check (scope in ('source', 'sink', 'route', 'key')),
  -- The sink, the route or the ordering key; empty for the source.
  name text collate "C" not null,
  -- Of a key: for this sink only; empty for all.
  sink text collate "C" not null default '',
  operator text not null,
  reason text,
  since timestamptz not null default now(),
  primary key (scope, name, sink)
);

create table {schema}.audit (
  id bigint generated always as identity (sequence name {schema}.audit_id_seq) primary key,
  at timestamptz not null default now(),
  operator text not null,
  action text not null,
  reason text,
  detail jsonb not null default '{}'
);
create index audit_at on {schema}.audit (at);

revoke all on {schema}.settings, {schema}.lease, {schema}.instance, {schema}.control, {schema}.pause, {schema}.audit
  from public;
revoke all on sequence {schema}.control_id_seq, {schema}.audit_id_seq from public;
