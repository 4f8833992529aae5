-- This migration is applied.
insert into {schema}.migration (version, name) values ({number}, '{name}');
