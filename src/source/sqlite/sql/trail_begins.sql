-- When the oldest row of the history was written. Served by the primary key.
SELECT published_at FROM outbox_published WHERE number > 0 ORDER BY number LIMIT 1;
