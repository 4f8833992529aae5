-- How many events were set aside for $1 from $2 up to $3, and whether the history begins before $2. Served by
-- discarded_sink; the history is looked into from its beginning, up to the first row that is old enough.
select (
         select count(*)
         from {schema}.discarded as d
         where d.sink = $1 and d.discarded_at >= $2 and d.discarded_at < $3
       ),
       exists (select from {schema}.published as p where p.published_at < $2)
