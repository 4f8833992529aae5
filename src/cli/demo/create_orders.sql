-- The table of the demo's application, which changes in the same transactions as its events.
CREATE TABLE orders (
    name TEXT PRIMARY KEY,
    steps INTEGER NOT NULL
) WITHOUT ROWID
