-- Charged failures with the time of the next attempt, by the database's clock. A sink that is done stays as
-- it is. Served by delivery_pkey.
insert into {schema}.delivery as d (seq, sink, state, attempts, next_at, last_error, route)
select o.seq, o.sink, 'retry', o.attempts,
       clock_timestamp() + o.pause_us * interval '1 microsecond', o.last_error,
       array(select jsonb_array_elements_text(o.route::jsonb))
from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[])
  as o (seq, sink, attempts, pause_us, last_error, route)
order by o.seq, o.sink
on conflict (seq, sink) do update
  set attempts = excluded.attempts, next_at = excluded.next_at, last_error = excluded.last_error,
      route = excluded.route, updated_at = now()
  where d.state = 'retry'
