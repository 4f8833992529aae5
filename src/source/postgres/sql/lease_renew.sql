-- Renews what still holds, and tells where the database stands: timeline and start of the server, table,
-- highest seq handed out. A promotion changes the timeline, a restored dump the table; a restart may have been a
-- crash, which forgets the last settlements, so that rows are pending again behind every cursor. Rows are locked in shard order, as in
-- lease_acquire. Served by lease_pkey.
with mine as materialized (
  select l.shard
  from unnest($1::integer[], $2::bigint[]) as o (shard, token)
  join {schema}.lease as l on l.shard = o.shard and l.token = o.token and l.owner is not null
  order by l.shard
  for no key update of l
),
held as (
  update {schema}.lease as l
  set expires_at = clock_timestamp() + $3 * interval '1 microsecond'
  from mine as m
  where l.shard = m.shard
  returning l.shard, l.token
)
select coalesce((select array_agg(h.shard order by h.shard) from held as h), '{}'),
       coalesce((select array_agg(h.token order by h.shard) from held as h), '{}'),
       left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '-' || extract(epoch from pg_postmaster_start_time())::text,
       '{schema_text}.event'::regclass::oid::bigint,
       (select case when q.is_called then q.last_value else q.last_value - 1 end
        from {schema}.event_seq as q)
