-- Makes the history partitions of today and the coming week, and drops those past retention ($1 microseconds);
-- at most $2 rows from the rest partition. Owner-defined functions: the relay's role owns nothing.
select {schema}.make_partitions(7)::bigint * 0
       + {schema}.drop_partitions(clock_timestamp() - $1 * interval '1 microsecond', $2)
