-- Is the time limit that was asked for in force (a pooler drops it)? And may the system identifier be read? Asked
-- before any search_path is ours, so every name is qualified.
select (extract(epoch from pg_catalog.current_setting('statement_timeout')::interval)
         operator(pg_catalog.*) 1000)::bigint,
       pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'execute')
