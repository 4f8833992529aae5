-- Notes what is in hand of these shards; nothing where the token no longer holds.
-- ?1 [[shard, token, [seq, ...]], ...], ?2 whether it is one event alone
UPDATE outbox_lease
SET in_hand = json(l.value ->> 2), alone = ?2
FROM json_each(?1) AS l
WHERE l.value ->> 0 = outbox_lease.shard AND l.value ->> 1 = outbox_lease.token;
