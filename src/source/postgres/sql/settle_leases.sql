-- Which of these shards are held, and by which token. The lock stops an acquisition (which takes the row for
-- update) until this transaction has ended, and lets a renewal through. Served by lease_pkey.
select l.shard, l.token
from {schema}.lease as l
where l.owner is not null and l.shard = any ($1::integer[])
order by l.shard
for key share
