-- Commands after $1, ascending, at most $2. Ids become visible in order (trigger control_order), so nothing
-- appears behind a mark. Served by control_pkey.
select c.id, c.command, c.payload::text
from {schema}.control as c
where c.id > $1
order by c.id
limit $2
