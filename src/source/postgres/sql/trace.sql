-- Where each of these events is known, in their order: pending, in the history, set aside. In one statement, so that
-- an event that is being settled is in one place at least. Served by event_id_key, published_id, discarded_pkey, event by
-- event: without the offset the planner may rather read a whole history.
select exists (select from {schema}.event as e where e.id = o.id offset 0),
       exists (select from {schema}.published as p where p.id = o.id offset 0),
       exists (select from {schema}.discarded as d where d.id = o.id offset 0)
from unnest($1::uuid[]) with ordinality as o (id, place)
order by o.place
