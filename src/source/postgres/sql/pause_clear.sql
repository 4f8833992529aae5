-- Lets something go on. Served by pause_pkey.
delete from {schema}.pause as p where p.scope = $1 and p.name = $2 and p.sink = $3
