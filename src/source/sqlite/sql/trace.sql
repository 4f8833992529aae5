-- Where each of these events is known, in their order: the id of the pending event at its seq, the history, what was
-- set aside. In one statement, so that an event that is being settled is in one place at least. Served by the primary
-- key of the events, outbox_published_seq and outbox_discarded_seq.
-- ?1 [[seq, id], ...]
SELECT
    (SELECT CAST(e.id AS BLOB) FROM outbox_event AS e WHERE e.seq = o.value ->> 0),
    EXISTS (SELECT 1 FROM outbox_published AS p WHERE p.seq = o.value ->> 0 AND p.id = o.value ->> 1),
    EXISTS (SELECT 1 FROM outbox_discarded AS x WHERE x.seq = o.value ->> 0 AND x.id = o.value ->> 1)
FROM json_each(?1) AS o;
