-- The schema, where it is not there yet.
create schema {schema};
