-- Identity of the history beside the system identifier, as in lease_renew.
select left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '-' || extract(epoch from pg_postmaster_start_time())::text, '{schema_text}.event'::regclass::oid::bigint
