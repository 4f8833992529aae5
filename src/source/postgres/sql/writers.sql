-- Transactions that hold what an INSERT into the outbox takes before it draws its number. A prepared one has
-- no process. The relay's own settlements show up as well; they end within moments and do no harm.
select l.virtualtransaction, l.pid is null
from pg_catalog.pg_locks as l
where l.locktype = 'relation'
  and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
  and l.relation = '{schema_text}.event'::regclass
  and l.mode = 'RowExclusiveLock'
  and l.granted
  and l.pid is distinct from pg_backend_pid()
