-- What a viewer's role needs: status, the list of discarded events, verify, monitoring. It reads and changes nothing, and
-- sees no payload or headers but those of discarded events.
grant usage on schema {schema} to {role};
grant select on {schema}.migration, {schema}.settings, {schema}.lease, {schema}.instance, {schema}.delivery,
  {schema}.discarded, {schema}.pause, {schema}.control, {schema}.audit to {role};
grant select (seq, id, kind, ordering_key, content_type, occurred_at, available_at) on {schema}.event to {role};
grant select on sequence {schema}.event_seq, {schema}.wake_until to {role};
-- verify: what was delivered, and where it stands.
grant select (ctid, published_at, seq, id, sink, stream, position, ordering_key) on {schema}.published to {role};
