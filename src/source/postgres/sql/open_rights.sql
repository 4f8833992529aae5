-- The rights of the present role that a relay needs and does not have, in words.
select n.what || ' on ' || n.kind || ' ' || n.name
from (
  select 'table' as kind, t.name, p.what, has_table_privilege('{schema_text}.' || t.name, p.what) as has
  from (values ('event', 'SELECT,UPDATE,DELETE'), ('delivery', 'SELECT,INSERT,UPDATE,DELETE'),
               ('published', 'SELECT,INSERT'), ('discarded', 'SELECT,INSERT,UPDATE,DELETE'),
               ('settings', 'SELECT'), ('lease', 'SELECT,UPDATE'),
               ('instance', 'SELECT,INSERT,UPDATE,DELETE'), ('control', 'SELECT,UPDATE,DELETE'),
               ('pause', 'SELECT'),
               ('audit', 'SELECT,UPDATE,DELETE')) as t (name, needed)
  cross join lateral unnest(string_to_array(t.needed, ',')) as p (what)
  union all
  select 'sequence', s.name, s.what, has_sequence_privilege('{schema_text}.' || s.name, s.what)
  from (values ('event_seq', 'SELECT'), ('wake_until', 'SELECT'), ('wake_until', 'UPDATE')) as s (name, what)
  union all
  select 'function', f.name, 'EXECUTE', has_function_privilege('{schema_text}.' || f.name, 'EXECUTE')
  from (values ('make_partitions(integer)'), ('drop_partitions(timestamptz, integer)')) as f (name)
) as n
where not n.has
