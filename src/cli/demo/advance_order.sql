-- The application's own change: one more step of an order. Found by the primary key.
INSERT INTO orders (name, steps) VALUES (?1, 1)
ON CONFLICT (name) DO UPDATE SET steps = steps + 1
