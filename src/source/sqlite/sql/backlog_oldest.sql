-- Since when the rows that have been due for longest are due: the first rows by seq, and the first of the
-- delayed ones by due time (outbox_event_delayed), each a bounded number.
-- ?1 now without Z, ?2 bound
WITH candidate (seq, due) AS (
    SELECT seq, rtrim(available_at, 'Z')
    FROM (SELECT seq, available_at FROM outbox_event ORDER BY seq LIMIT ?2)
    UNION ALL
    SELECT * FROM (
        SELECT seq, rtrim(available_at, 'Z')
        FROM outbox_event
        WHERE available_at <> occurred_at AND rtrim(available_at, 'Z') <= ?1
        ORDER BY rtrim(available_at, 'Z')
        LIMIT ?2
    )
),
ready (due) AS (
    SELECT max(c.due, coalesce(
        (SELECT max(rtrim(d.next_at, 'Z')) FROM outbox_delivery AS d WHERE d.seq = c.seq),
        ''
    ))
    FROM candidate AS c
)
SELECT CAST(min(due) || 'Z' AS BLOB) FROM ready WHERE due <= ?1;
