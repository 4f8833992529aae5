-- Which sinks are done with these rows. Read after their locks, so that it sees whatever was committed by
-- those it waited for. Served by delivery_pkey.
select d.seq, d.sink
from {schema}.delivery as d
where d.seq = any ($1::bigint[]) and d.state <> 'retry'
