-- The highest number that a table handed out so far, gone rows included.
-- ?1 table
SELECT seq FROM sqlite_sequence WHERE name = ?1;
