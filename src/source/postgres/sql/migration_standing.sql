-- Is the schema there, and the table that remembers migrations? Asks the tables of the catalogue, because name
-- look-up functions may answer from a cache filled before another migrator's commit.
select exists (select from pg_catalog.pg_namespace as n where n.nspname = '{schema_name}'),
       exists (
         select from pg_catalog.pg_class as c
         join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
         where n.nspname = '{schema_name}' and c.relname = 'migration'
       )
