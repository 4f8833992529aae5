-- What a writer's role needs, for the two functions and for a plain INSERT alike. It reads no event, changes none,
-- and draws no number itself.
grant usage on schema {schema} to {role};
grant execute on function {schema}.publish(pg_catalog.text, pg_catalog.json, pg_catalog.text, pg_catalog.jsonb,
  pg_catalog.timestamptz, pg_catalog.uuid) to {role};
grant execute on function {schema}.publish_bytes(pg_catalog.text, pg_catalog.bytea, pg_catalog.text, pg_catalog.text,
  pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.uuid) to {role};
-- From here on only for a plain INSERT: every column but seq, ...
grant insert (id, kind, ordering_key, payload, payload_bytes, content_type, headers, occurred_at, available_at)
  on {schema}.event to {role};
-- ... for "returning seq, id" and "on conflict (id)", ...
grant select (seq, id) on {schema}.event to {role};
-- ... the id's default, and the condition of the wake trigger, which both run with the writer's rights.
grant execute on function {schema}.uuid_v7() to {role};
grant select on sequence {schema}.wake_until to {role};
