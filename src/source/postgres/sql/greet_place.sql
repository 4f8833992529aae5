-- Which server answers, and which part of its history: as in open_place, but a standby can be asked as well.
select case when pg_catalog.pg_is_in_recovery() then 'standby'
            else pg_catalog."left"(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8) end
       operator(pg_catalog.||) '-'
       operator(pg_catalog.||) extract(epoch from pg_catalog.pg_postmaster_start_time())::text
