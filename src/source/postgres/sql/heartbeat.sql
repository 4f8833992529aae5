-- This instance's sign of life. Served by instance_pkey.
insert into {schema}.instance as i (instance, host, version, listening, report)
values ($1, $2, $3, $4, $5::jsonb)
on conflict (instance) do update
  set host = excluded.host, version = excluded.version, listening = excluded.listening,
      report = excluded.report, seen_at = clock_timestamp()
