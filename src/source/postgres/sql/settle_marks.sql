-- Done marks, in (seq, sink) order. A sink that is done stays as it is. Served by delivery_pkey.
insert into {schema}.delivery as d (seq, sink, state, attempts, route)
select o.seq, o.sink, o.state, o.attempts, array(select jsonb_array_elements_text(o.route::jsonb))
from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[])
  as o (seq, sink, state, attempts, route)
order by o.seq, o.sink
on conflict (seq, sink) do update
  set state = excluded.state, attempts = excluded.attempts, route = excluded.route,
      next_at = null, last_error = null, updated_at = now()
  where d.state = 'retry'
