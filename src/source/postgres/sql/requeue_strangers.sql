-- How many of these (seq, id) are not in the outbox: because another event has the seq by now, which cannot be taken
-- back; and because the event was there and ended meanwhile, its last sink being done with it. Served by event_pkey.
select count(*) filter (where e.seq is not null), count(*) filter (where e.seq is null)
from unnest($1::bigint[], $2::uuid[]) as o (seq, id)
left join {schema}.event as e on e.seq = o.seq
where e.seq is null or e.id <> o.id
