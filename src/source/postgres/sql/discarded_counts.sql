-- Discarded events per sink. Served by discarded_sink alone.
select d.sink, count(*) from {schema}.discarded as d group by d.sink order by d.sink
