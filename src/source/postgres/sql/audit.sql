-- Who did what, and why.
insert into {schema}.audit (operator, action, reason, detail)
values ($1, $2, $3, $4::jsonb)
