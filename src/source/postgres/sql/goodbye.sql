-- Removes this instance's row. Served by instance_pkey.
delete from {schema}.instance as i where i.instance = $1
