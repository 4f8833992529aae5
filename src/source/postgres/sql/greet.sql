-- Is the time limit that was asked for in force (a pooler drops it)? And may the system identifier be read?
select (extract(epoch from current_setting('statement_timeout')::interval) * 1000)::bigint,
       has_function_privilege('pg_catalog.pg_control_system()', 'execute')
