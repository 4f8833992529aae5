-- What a writer's role needs: two functions. (For plain INSERT: grant insert on the event table instead.)
grant usage on schema {schema} to {role};
grant execute on function {schema}.publish(text, json, text, jsonb, timestamptz, uuid) to {role};
grant execute on function {schema}.publish_bytes(text, bytea, text, text, jsonb, timestamptz, uuid) to {role};
