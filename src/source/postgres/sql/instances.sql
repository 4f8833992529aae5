-- Instances with a sign of life in the last 90 seconds. A small table.
select i.instance, i.host, i.version, i.listening,
       date_part('epoch', statement_timestamp() - i.seen_at), i.report
from {schema}.instance as i
where i.seen_at > statement_timestamp() - interval '90 seconds'
order by i.started_at, i.instance
