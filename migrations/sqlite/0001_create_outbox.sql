-- The outbox and the relay's own tables.
--
-- Every moment is ISO 8601 text in UTC, `2026-01-31T12:00:00.000Z`, with up to six digits after the point.
-- The checks are few and cheap, and each stops what no relay could deliver, in the transaction that made
-- it; everything here runs on the SQLite of the application, 3.35 or newer.

-- Pending events only: inserted by writers, deleted by the relay, never updated. AUTOINCREMENT, because a
-- seq that is used again would break the order. The payload stands last, so that reading the columns
-- before it does not walk through it.
CREATE TABLE outbox_event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    -- A time-ordered UUID (version 7). Without regard to case: two spellings are one id, hence one message.
    id TEXT NOT NULL COLLATE NOCASE UNIQUE DEFAULT (printf(
        '%08x-%04x-7%03x-%x%03x-%012x',
        (CAST(strftime('%s', 'now') AS INTEGER) * 1000
            + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)) >> 16,
        (CAST(strftime('%s', 'now') AS INTEGER) * 1000
            + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER)) & 65535,
        random() & 4095,
        8 + (random() & 3),
        random() & 4095,
        random() & 281474976710655
    )),
    kind TEXT NOT NULL,
    ordering_key TEXT,
    occurred_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    available_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    content_type TEXT,
    headers TEXT NOT NULL DEFAULT '{}',
    payload TEXT,
    payload_bytes BLOB,
    CONSTRAINT seq_is_positive CHECK (seq > 0),
    CONSTRAINT id_is_a_uuid CHECK (id LIKE '________-____-____-____-____________'),
    CONSTRAINT kind_is_text CHECK (typeof(kind) = 'text' AND kind <> ''),
    CONSTRAINT ordering_key_is_text_of_1_to_512_bytes CHECK (
        ordering_key IS NULL
        OR (typeof(ordering_key) = 'text' AND length(CAST(ordering_key AS BLOB)) BETWEEN 1 AND 512)
    ),
    CONSTRAINT exactly_one_payload CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CONSTRAINT payload_is_json CHECK (
        payload IS NULL OR (typeof(payload) = 'text' AND json_valid(payload))
    ),
    CONSTRAINT headers_are_json CHECK (json_valid(headers)),
    CONSTRAINT times_are_iso_8601_utc CHECK (
        occurred_at GLOB '[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]*Z'
        AND available_at GLOB '[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]*Z'
    )
);

-- Runs and heads of keys, and keyless rows by seq.
CREATE INDEX outbox_event_key ON outbox_event (ordering_key, seq);

-- Delayed rows by due time. Without the Z the order of the text is the order of the moments, whatever the
-- number of digits. A plain INSERT sets both times to the same moment and is not in here.
CREATE INDEX outbox_event_delayed ON outbox_event (rtrim(available_at, 'Z'), seq)
    WHERE available_at <> occurred_at;

-- State per event and sink, a row only where there is something to remember: a charged failure, or a sink
-- that is done with an event which others still wait for.
CREATE TABLE outbox_delivery (
    seq INTEGER NOT NULL,
    sink TEXT NOT NULL,
    -- retry, published or discarded; the last two mean that the sink is done with it.
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    next_at TEXT,
    last_error TEXT,
    -- Every sink of the event's route as a JSON array, when the mark was written.
    route TEXT NOT NULL DEFAULT '[]',
    stream TEXT,
    position INTEGER,
    -- The history has this publish already.
    kept INTEGER NOT NULL DEFAULT 1,
    -- An operator's word that this sink shall not get the event: the owner sets it aside as soon as it is
    -- not out. It stands here, and is no command, so that no restart and no other owner loses it.
    skip TEXT,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (seq, sink)
) WITHOUT ROWID;

-- Backed-off rows by due time.
CREATE INDEX outbox_delivery_next ON outbox_delivery (sink, next_at, seq) WHERE state = 'retry';

-- Finished rows per sink.
CREATE INDEX outbox_delivery_done ON outbox_delivery (sink, seq) WHERE state <> 'retry';

-- The history, per sink; rows come in the order of their publishing, so that the oldest are the lowest.
CREATE TABLE outbox_published (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    sink TEXT NOT NULL,
    published_at TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    stream TEXT,
    position INTEGER,
    -- From here on only when whole events are kept.
    kind TEXT,
    ordering_key TEXT,
    occurred_at TEXT,
    content_type TEXT,
    headers TEXT,
    payload TEXT,
    payload_bytes BLOB
);

CREATE INDEX outbox_published_seq ON outbox_published (seq, sink);

-- Events set aside, per sink, whole; rows come in the order in which it happened.
CREATE TABLE outbox_discarded (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    sink TEXT NOT NULL,
    discarded_at TEXT NOT NULL,
    reason TEXT NOT NULL,
    code TEXT,
    attempts INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    -- Every sink of the event's route as a JSON array: a requeue is for this sink, the others are done.
    route TEXT NOT NULL,
    kind TEXT NOT NULL,
    ordering_key TEXT,
    occurred_at TEXT NOT NULL,
    available_at TEXT NOT NULL,
    content_type TEXT,
    headers TEXT NOT NULL,
    payload TEXT,
    payload_bytes BLOB
);

CREATE UNIQUE INDEX outbox_discarded_seq ON outbox_discarded (seq, sink);

-- Ownership. The file lock beside the database decides who may take the rows; the token fences.
CREATE TABLE outbox_lease (
    shard INTEGER PRIMARY KEY,
    owner TEXT,
    token INTEGER NOT NULL DEFAULT 0,
    expires_at TEXT NOT NULL DEFAULT '1970-01-01T00:00:00.000Z',
    -- What a careful owner has in hand (seqs), and whether that is one event alone; for whoever takes over, should it die.
    in_hand TEXT NOT NULL DEFAULT '[]',
    alone INTEGER NOT NULL DEFAULT 0,
    -- Owners that died in a row: the first with anything in hand, the second with these, the third with one of them alone.
    deaths INTEGER NOT NULL DEFAULT 0,
    suspects TEXT NOT NULL DEFAULT '[]'
);

-- Signs of life.
CREATE TABLE outbox_instance (
    instance TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    version TEXT NOT NULL,
    listening INTEGER NOT NULL,
    report TEXT NOT NULL,
    started_at TEXT NOT NULL,
    seen_at TEXT NOT NULL
);

-- Operators' commands, which owners read once.
CREATE TABLE outbox_control (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    -- look: the rows in `seqs` re-entered. hurry: those need no longer wait. pauses: outbox_pause has changed.
    verb TEXT NOT NULL,
    seqs TEXT,
    actor TEXT,
    at TEXT NOT NULL
);

-- What operators hold back. A table of its own beside outbox_control, because a pause is state and a command
-- is news: commands are read from a mark on and purged, a pause has to be found whole by whoever takes over,
-- however long it has stood. A change of it adds the command `pauses`, which wakes the owner and makes it read
-- this table again.
CREATE TABLE outbox_pause (
    scope TEXT NOT NULL CHECK (scope IN ('source', 'sink', 'route', 'key')),
    -- The sink, the route or the ordering key; empty for the source.
    name TEXT NOT NULL,
    -- Of a key: for this sink only; empty for all.
    sink TEXT NOT NULL DEFAULT '',
    actor TEXT NOT NULL,
    reason TEXT,
    since TEXT NOT NULL,
    PRIMARY KEY (scope, name, sink)
) WITHOUT ROWID;

-- Who did what.
CREATE TABLE outbox_audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT,
    detail TEXT NOT NULL
);

-- Facts about this outbox: `history` (its identity), `shards`, `shard_algorithm`.
CREATE TABLE outbox_setting (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Which migrations have run.
CREATE TABLE outbox_migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

INSERT INTO outbox_setting (name, value) VALUES
    ('history', lower(hex(randomblob(16)))),
    ('shard_algorithm', 'fnv1a64'),
    ('shards', {shards});

INSERT INTO outbox_lease (shard)
WITH RECURSIVE shard (number) AS (
    SELECT 0 UNION ALL SELECT number + 1 FROM shard WHERE number + 1 < {shards}
)
SELECT number FROM shard;
