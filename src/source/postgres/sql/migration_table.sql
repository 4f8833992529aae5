-- Remembers which migrations were applied. In the outbox's own schema: an application's migrations keep
-- theirs elsewhere.
create table {schema}.migration (
  version bigint primary key,
  name text not null,
  applied_at timestamptz not null default now()
);
