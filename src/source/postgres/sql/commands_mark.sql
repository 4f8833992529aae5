-- The highest command id there is. Served by control_pkey.
select coalesce(max(c.id), 0) from {schema}.control as c
