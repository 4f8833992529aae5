-- Which sinks are done with these rows, and what the history lacks of it ($3 is null where it lacks nothing). Read after their locks, so that it sees whatever was committed by
-- those it waited for. Served by delivery_pkey, row by row: the state is asked for outside, since a condition on it
-- inside would invite a walk over everything that is done.
select d.seq, d.sink, case when d.state = 'published' and not d.kept then d.attempts end, d.stream, d.position
from unnest($1::bigint[]) as s (seq)
cross join lateral (
  select o.seq, o.sink, o.state, o.attempts, o.stream, o.position, o.kept
  from {schema}.delivery as o
  where o.seq = s.seq
  offset 0
) as d
where d.state <> 'retry'
