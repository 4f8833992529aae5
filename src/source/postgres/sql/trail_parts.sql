-- The partitions of the history and their blocks, as of now. Only the catalogue is read.
select c.relname::text,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint
from pg_inherits as i
join pg_class as c on c.oid = i.inhrelid
where i.inhparent = '{schema_text}.published'::regclass
order by c.relname
