-- The highest migration there is.
select coalesce(max(m.version), 0) from {schema}.migration as m
