-- Makes backed-off events due at once; one that was blocked, so far in the future that nothing else explains
-- it, gets a fresh budget. Returns the rows that changed. Served by delivery_pkey.
update {schema}.delivery as d
set next_at = clock_timestamp(),
    attempts = case when d.next_at > clock_timestamp() + interval '50 years' then 0 else d.attempts end
from unnest($1::bigint[], $2::text[]) as p (seq, sink)
where d.seq = p.seq and d.sink = p.sink and d.state = 'retry' and d.next_at > clock_timestamp()
returning d.seq
