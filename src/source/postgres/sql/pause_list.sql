-- What operators hold back, at most $1. Small: its number is bounded where it is written.
select p.scope, p.name, p.sink, p.operator, p.reason, p.since
from {schema}.pause as p
order by p.scope, p.name, p.sink
limit $1
