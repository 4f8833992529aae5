-- What a requeue overtakes, for the newest events that match: how many, keys with later events pending, those
-- events (counted up to a bound a key), events whose sink had a later one of their key as far as the newest rows of
-- the history tell, and whether there are more. Served by outbox_event_key; walks the discarded events, and
-- so much of the history.
-- ?1 ids (JSON array), ?2 sink, ?3 kind, ?4 prefix of the kind, ?5 key, ?6 reason, ?7 code,
-- ?8 set aside until this moment, ?9 most events, ?10 most behind, ?11 most of the history
WITH picked AS MATERIALIZED (
    SELECT seq, sink, ordering_key, discarded_at
    FROM outbox_discarded
    WHERE (?1 IS NULL OR id IN (SELECT value FROM json_each(?1)))
        AND (?2 IS NULL OR sink = ?2)
        AND (?3 IS NULL OR kind = ?3)
        AND (?4 IS NULL OR substr(kind, 1, length(?4)) = ?4)
        AND (?5 IS NULL OR ordering_key = ?5)
        AND (?6 IS NULL OR reason = ?6)
        AND (?7 IS NULL OR code = ?7)
        AND (?8 IS NULL OR discarded_at <= ?8)
    ORDER BY number DESC
    LIMIT ?9
),
firsts AS MATERIALIZED (
    SELECT ordering_key, min(seq) AS seq FROM picked WHERE ordering_key IS NOT NULL GROUP BY ordering_key
),
ahead AS MATERIALIZED (
    SELECT (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM outbox_event AS e
            WHERE e.ordering_key = f.ordering_key AND e.seq > f.seq
            LIMIT ?10
        )
    ) AS events
    FROM firsts AS f
),
past AS MATERIALIZED (
    SELECT ordering_key, sink, seq, published_at FROM outbox_published ORDER BY number DESC LIMIT ?11
),
latest AS MATERIALIZED (
    SELECT ordering_key, sink, max(seq) AS seq
    FROM past
    WHERE ordering_key IN (SELECT ordering_key FROM firsts)
    GROUP BY ordering_key, sink
)
SELECT
    (SELECT count(*) FROM picked),
    (SELECT count(*) FROM ahead WHERE events > 0),
    (SELECT coalesce(sum(events), 0) FROM ahead),
    (
        SELECT count(*)
        FROM picked AS p
        JOIN latest AS l ON l.ordering_key = p.ordering_key AND l.sink = p.sink AND l.seq > p.seq
    ),
    (SELECT count(*) FROM past) >= ?11
        AND (SELECT min(published_at) FROM past) >= (SELECT min(discarded_at) FROM picked);
