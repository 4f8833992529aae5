-- A sample of the backlog: at most $1 rows are looked at, from the lowest seq, plus the earliest delayed row.
-- The count is exact below $1. The oldest due row is exact unless $1 rows that are not yet due stand before it; a
-- backed-off row counts from when its writer let it go. Served by event_pkey and event_delayed.
with sample as materialized (
  select e.available_at from {schema}.event as e order by e.seq limit $1
)
select (select count(*) from sample),
       least(
         (select min(s.available_at) from sample as s where s.available_at <= statement_timestamp()),
         (select e.available_at
          from {schema}.event as e
          where e.available_at <> e.occurred_at and e.available_at <= statement_timestamp()
          order by e.available_at
          limit 1)
       ),
       statement_timestamp()
