-- Every shard with its owner and the seconds left. A whole, small table.
select l.shard, l.owner, l.token,
       coalesce(date_part('epoch', l.expires_at - statement_timestamp()), 0)
from {schema}.lease as l
order by l.shard
