-- Is there such a table?
-- ?1 name
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1;
