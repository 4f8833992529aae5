-- History of published events: identity and receipt. Served by event_pkey.
insert into {schema}.published (seq, id, sink, attempts, stream, position, kind, ordering_key)
select e.seq, e.id, o.sink, o.attempts, o.stream, o.position, e.kind, e.ordering_key
from unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::bigint[])
  as o (seq, sink, attempts, stream, position)
join {schema}.event as e on e.seq = o.seq
