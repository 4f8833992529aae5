-- What was delivered to $1 from $2 up to $3, among the rows that stand from block position $4 up to $5. A slice of one
-- partition, read as it lies on the disk: no index is needed, and the work is bounded whatever the rows are. The moments
-- choose the partition. Rows of the history never move.
select p.seq, p.id, p.published_at, p.stream, p.position, p.ordering_key
from {schema}.published as p
where p.sink = $1
  and p.published_at >= $2 and p.published_at < $3
  and p.ctid >= $4::text::tid and p.ctid < $5::text::tid
