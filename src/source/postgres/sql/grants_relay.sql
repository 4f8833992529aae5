-- What a relay's role needs. It owns nothing and inserts no events.
grant usage on schema {schema} to {role};
grant select on {schema}.migration, {schema}.settings, {schema}.pause to {role};
-- update is for row locks: events are never updated.
grant select, update, delete on {schema}.event to {role};
grant select, insert, update, delete on {schema}.delivery, {schema}.discarded, {schema}.instance to {role};
grant select, insert on {schema}.published to {role};
grant select, update on {schema}.lease to {role};
grant select, update, delete on {schema}.control, {schema}.audit to {role};
grant select on sequence {schema}.event_seq to {role};
grant select, update on sequence {schema}.wake_until to {role};
grant execute on function {schema}.make_partitions(integer) to {role};
grant execute on function {schema}.drop_partitions(pg_catalog.timestamptz, integer) to {role};
