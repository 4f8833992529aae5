-- The cluster's identity, the same for a primary and its standbys.
select c.system_identifier::text from pg_catalog.pg_control_system() as c
