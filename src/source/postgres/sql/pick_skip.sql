-- Marks pending events to be set aside for one sink each; what that sink is done with stays as it is. Returns
-- the rows marked. Served by event_pkey and delivery_pkey.
insert into {schema}.delivery as d (seq, sink, state, skip)
select p.seq, p.sink, 'retry', $3
from unnest($1::bigint[], $2::text[]) as p (seq, sink)
join {schema}.event as e on e.seq = p.seq
order by p.seq, p.sink
on conflict (seq, sink) do update set skip = excluded.skip where d.state = 'retry'
returning d.seq
