-- Nothing is suspected any more of the shards that these tokens still hold, and nothing is in hand.
-- ?1 [[shard, token], ...]
UPDATE outbox_lease
SET deaths = 0, suspects = '[]', in_hand = '[]', alone = 0
FROM json_each(?1) AS l
WHERE l.value ->> 0 = outbox_lease.shard AND l.value ->> 1 = outbox_lease.token;
