-- What became of events: state while they wait, history, and the dead letters.

-- State per event and sink; a row only where there is something to remember.
create table {schema}.delivery (
  seq bigint not null,
  sink text collate "C" not null,
  state text not null constraint delivery_state_check check (state in ('retry', 'published', 'discarded')),
  attempts bigint not null default 0,
  next_at timestamptz,
  last_error text,
  -- Every sink of the event's route when this mark was made: what must be done before the event may go.
  route text[],
  -- The destination's acknowledgement of a publish, and whether the history has it already. It has not where
  -- whoever reported it owned the shard no more: then it is written when the event goes.
  stream text,
  position bigint,
  kept boolean not null default true,
  updated_at timestamptz not null default now(),
  -- An operator's word that this sink shall not get the event: the owner sets it aside as soon as it is not
  -- out. It stands here, and is no command, so that no restart and no other owner loses it.
  skip text,
  primary key (seq, sink)
);

-- Backed-off rows by due time.
create index delivery_retry on {schema}.delivery (sink, next_at) where state = 'retry';

-- Done marks of one sink, for the sweep that removes events whose sinks are all done.
create index delivery_done on {schema}.delivery (sink, seq) where state <> 'retry';

-- Published events per sink, one partition a day, dropped as a whole.
create table {schema}.published (
  published_at timestamptz not null default now(),
  seq bigint not null,
  id uuid not null,
  sink text collate "C" not null,
  attempts bigint not null,
  -- The destination's acknowledgement.
  stream text,
  position bigint,
  kind text not null,
  ordering_key text collate "C",
  -- From here on only where the whole event is kept.
  payload json,
  payload_bytes bytea,
  content_type text,
  headers jsonb,
  occurred_at timestamptz,
  available_at timestamptz
) partition by range (published_at);

-- One event by its identity. Ids rise with time, so this index grows at its end.
create index published_id on {schema}.published (id);

-- Takes what no day's partition takes: no relay has made one, or a clock is wrong.
create table {schema}.published_rest partition of {schema}.published default;

-- Makes the partitions (days are UTC) of today and the coming `days`. Returns how many were made.
--
-- A new partition is attached rather than created in place: that locks the history against other schema
-- changes only, and inserts go on.
create function {schema}.make_partitions(days integer) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '1s'
as $outboxd$
declare
  home constant text := '{schema_text}';
  day date;
  part text;
  made integer := 0;
begin
  -- One maker at a time; the others have nothing to add.
  if not pg_try_advisory_xact_lock(hashtextextended('outboxd partitions of ' || home, 0)) then
    return 0;
  end if;
  for day in select current_date + n from generate_series(0, least($1, 60)) as n loop
    part := 'published_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass(home || '.' || part) is not null;
    -- Rows of that day are in the rest already: the day stays there.
    continue when exists (
      select from {schema}.published_rest as r where r.published_at >= day and r.published_at < day + 1
    );
    execute format('create table %s.%I (like %s.published including all)', home, part, home);
    execute format('revoke all on table %s.%I from public', home, part);
    execute format(
      'alter table %s.published attach partition %s.%I for values from (%L) to (%L)',
      home, home, part, day::timestamptz, (day + 1)::timestamptz
    );
    made := made + 1;
  end loop;
  return made;
end
$outboxd$;

-- Drops the partitions whose last moment is before `before`, and at most `slice` rows of the rest.
-- Returns the rows removed (of dropped partitions: as last counted by vacuum or analyze).
create function {schema}.drop_partitions(before timestamptz, slice integer) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '1s'
as $outboxd$
declare
  home constant text := '{schema_text}';
  part record;
  removed bigint := 0;
  swept bigint;
begin
  if not pg_try_advisory_xact_lock(hashtextextended('outboxd partitions of ' || home, 0)) then
    return 0;
  end if;
  for part in
    select c.relname, greatest(c.reltuples, 0)::bigint as rows
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = '{schema_text}.published'::regclass
      and c.relname ~ '^published_[0-9]{8}$'
      and (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamptz <= $1
    order by c.relname
  loop
    execute format('drop table %s.%I', home, part.relname);
    removed := removed + part.rows;
  end loop;
  delete from {schema}.published_rest
  where ctid = any (array(
    select r.ctid from {schema}.published_rest as r
    where r.published_at < $1 limit $2 for update skip locked
  ));
  get diagnostics swept = row_count;
  return removed + swept;
end
$outboxd$;

revoke all on function {schema}.make_partitions(integer) from public;
revoke all on function {schema}.drop_partitions(timestamptz, integer) from public;

select {schema}.make_partitions(7);

-- Events set aside, per sink, with everything that is needed to put them back.
create table {schema}.discarded (
  id uuid not null,
  sink text collate "C" not null,
  seq bigint not null,
  kind text not null,
  ordering_key text collate "C",
  payload json,
  payload_bytes bytea,
  content_type text,
  headers jsonb not null,
  occurred_at timestamptz not null,
  available_at timestamptz not null,
  reason text not null constraint discarded_reason_check
    check (reason in ('permanent', 'retry_budget', 'crashed', 'operator', 'cancelled')),
  code text,
  last_error text not null,
  attempts bigint not null,
  -- Every sink of its route then: a requeue for one must not reach the others again.
  route text[] not null,
  discarded_at timestamptz not null default now(),
  primary key (id, sink)
);

-- Newest first, and what is past its retention.
create index discarded_age on {schema}.discarded (discarded_at);

-- Counts per sink without touching the rows.
create index discarded_sink on {schema}.discarded (sink, discarded_at);

revoke all on {schema}.delivery, {schema}.published, {schema}.published_rest, {schema}.discarded from public;
