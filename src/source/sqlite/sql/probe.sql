-- Which rows exist in these ranges? Served by the primary key: an empty range costs one seek. CROSS JOIN
-- keeps the ranges in their order, which is ascending and without overlaps, and so the rows as well.
-- ?1 [[first, last], ...], ?2 limit
SELECT e.seq, CAST(e.ordering_key AS BLOB), typeof(e.ordering_key) = 'blob'
FROM json_each(?1) AS r
CROSS JOIN outbox_event AS e ON e.seq BETWEEN r.value ->> 0 AND r.value ->> 1
LIMIT ?2;
