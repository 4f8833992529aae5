-- What any application does to announce a change: a plain INSERT in the transaction of the change.
INSERT INTO outbox_event (kind, ordering_key, payload, headers) VALUES (?1, ?2, ?3, ?4)
RETURNING seq, id
