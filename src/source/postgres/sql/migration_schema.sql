-- The schema, where it is not there yet. One that is there keeps its rights: it may be the application's.
create schema {schema};
revoke all on schema {schema} from public;
