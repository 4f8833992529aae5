-- Is this held back? Served by pause_pkey.
select exists (select from {schema}.pause as p where p.scope = $1 and p.name = $2 and p.sink = $3)
