-- Done marks, in (seq, sink) order. A sink that is done stays as it is, but for a publish that the history did not have
-- yet. Served by delivery_pkey.
insert into {schema}.delivery as d (seq, sink, state, attempts, route, stream, position, kept)
select o.seq, o.sink, o.state, o.attempts, array(select jsonb_array_elements_text(o.route::jsonb)),
       o.stream, o.position, o.kept
from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::boolean[])
  as o (seq, sink, state, attempts, route, stream, position, kept)
order by o.seq, o.sink
on conflict (seq, sink) do update
  set state = excluded.state, attempts = excluded.attempts, route = excluded.route, stream = excluded.stream,
      position = excluded.position, kept = excluded.kept, next_at = null, last_error = null, updated_at = now()
  where d.state = 'retry' or not d.kept
