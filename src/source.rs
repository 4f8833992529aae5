//! Where events come from: the seam between the relay's core and a database that holds an outbox.
//!
//! The core decides, a source only reads and writes. Every call has a time limit of its own; a
//! connection that ran into it is closed, never reused, and the core assumes nothing about what the
//! database made of the statement.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use uuid::Uuid;

use crate::event::Timestamp;
use crate::lease::Lease;

pub use members::Members;
pub use outcome::{DiscardReason, Outcome, Verdict};
pub use pause::{Pause, Target};
pub use row::{Body, Row};
pub use share::{Begun, BegunEvent, Share};
pub use suspects::{InHand, Suspects};

pub mod admin;
pub mod members;
pub mod memory;
pub mod outcome;
pub mod pause;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod row;
mod settlement;
pub mod share;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod suspects;
pub mod trail;
pub mod waiting;

/// A database that holds an outbox.
///
/// `sink` names the feed a call is for: the same row may be done for one sink and pending for another.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// The name from configuration (`databases.NAME`).
    fn name(&self) -> &str;

    /// Connects if need be and checks that the outbox can be relayed: schema version, identity cache,
    /// shard count and algorithm. Repeated after every outage.
    async fn open(&self) -> Result<Opened, SourceError>;

    /// Reads forward: rows with `seq > after`, ascending. Every visible row is reported, also one that is
    /// done for this sink or not yet due, so that the caller can tell a gap from a row. Bodies are left out
    /// for rows whose key is in `bare_keys`, that are done, that are not due, and that are larger than
    /// [`INLINE_LIMIT`]. The read ends with the row that fills one of its bounds.
    async fn read(
        &self,
        sink: &str,
        after: i64,
        bounds: ReadBounds,
        bare_keys: &[Arc<str>],
    ) -> Result<Vec<Row>, SourceError>;

    /// Reads keys' own runs: for each `(key, from)` the rows with `seq >= from`, ascending, at most
    /// `per_key`, rows that are done for this sink left out. Bodies as in [`Source::read`]. One
    /// statement for all keys. Rows come grouped by key in no particular order of keys.
    async fn read_keys(
        &self,
        sink: &str,
        keys: &[(Arc<str>, i64)],
        per_key: u32,
    ) -> Result<Vec<Row>, SourceError>;

    /// Reads these rows, with bodies whatever their size; those that are gone or done for this sink are left
    /// out.
    async fn read_seqs(&self, sink: &str, seqs: &[i64]) -> Result<Vec<Row>, SourceError>;

    /// Which rows exist in these ranges? At most `limit` (seq, key) pairs, ascending. Used to look into gaps:
    /// cheap when there is nothing.
    async fn probe(
        &self,
        ranges: &[RangeInclusive<i64>],
        limit: u32,
    ) -> Result<Vec<(i64, Option<Arc<str>>)>, SourceError>;

    /// The transactions that may still show a row with a seq that was already taken. `None` where that
    /// cannot happen (a single writer).
    async fn writers(&self) -> Result<Option<Writers>, SourceError>;

    /// One slice of the sweep: the first row of each key that is not done for this sink, and keyless rows,
    /// in an order of the source's own, after `mark`. Also deletes rows among them whose sinks
    /// (`required`, by kind, decided by the caller) are all done; see [`Source::delete_done`].
    async fn heads(
        &self,
        sink: &str,
        mark: Option<&SweepMark>,
        limit: u32,
    ) -> Result<Sweep, SourceError>;

    /// Rows that fall due at or after `due` (by the source's clock, microseconds since 1970) and had to be
    /// dropped from memory: delayed rows and backed-off ones, earliest due first, at most `limit`.
    async fn due_after(
        &self,
        sink: &str,
        due: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>, SourceError>;

    /// Writes outcomes in one transaction: all or nothing. Returns one flag per outcome, in order: false
    /// means fenced, the row was gone or another owner's. `durable` waits for the disk where the database
    /// gives the choice; a batch that holds a discard must be durable.
    async fn settle(&self, outcomes: &[Outcome], durable: bool) -> Result<Vec<bool>, SourceError>;

    /// Deletes rows for which every sink of `required` has a done mark; at most `limit`. For events that
    /// several sinks share, when a settlement saw only its own part. Returns the number.
    async fn delete_done(&self, required: &[Arc<str>], limit: u32) -> Result<u64, SourceError>;

    /// Events that something is remembered of (a failure, or a sink that is done with them), with the sinks
    /// of the routes written then that are not through with them: rows with `seq > after`, ascending, from at
    /// most `limit` events.
    async fn begun(&self, after: i64, limit: u32) -> Result<Begun, SourceError>;

    /// Operators' commands with an id above `after`, ascending. `after = None` returns none, only the
    /// present mark. The pauses come with it whenever they may have changed since `after`; they are read
    /// after the commands.
    async fn commands(&self, after: Option<i64>) -> Result<Commands, SourceError>;

    /// Says that this instance wants a share of the shards for the coming `ttl` (zero: no longer), and whether it is idle.
    /// It informs the shares, and decides nothing about ownership.
    async fn attend(&self, instance: Uuid, ttl: Duration, idle: bool) -> Result<(), SourceError>;

    /// Who wants a share, and what is free.
    async fn members(&self, instance: Uuid) -> Result<Members, SourceError>;

    /// Takes at most so many shards under fresh tokens, in one statement: those that are this instance's already, then
    /// free and expired ones. What else was this instance's is free afterwards. A source that only one instance can own
    /// gives all or none, and all whatever `most` says.
    async fn acquire(
        &self,
        instance: Uuid,
        ttl: Duration,
        most: u16,
    ) -> Result<Vec<Lease>, SourceError>;

    /// Renews, in one statement, and tells where the database stands.
    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Result<Renewed, SourceError>;

    /// Gives shards back at once. Tokens that no longer hold are ignored.
    async fn release(&self, leases: &[Lease]) -> Result<(), SourceError>;

    /// Says that an incarnation of this instance ended without giving its shards back: they are free, and were left by a
    /// death.
    async fn bury(&self, instance: Uuid) -> Result<(), SourceError>;

    /// Of these shards, those whose last owners died. A clean end counts for nothing, and neither does a lease that its own
    /// instance takes again.
    async fn suspects(&self, leases: &[Lease]) -> Result<Vec<Suspects>, SourceError>;

    /// Notes what is in hand of these shards, in place of what was noted, and whether it is one event alone.
    async fn note(&self, in_hand: &[InHand], alone: bool) -> Result<(), SourceError>;

    /// Forgets the deaths, and what is noted.
    async fn acquit(&self, leases: &[Lease]) -> Result<(), SourceError>;

    /// Every shard with its owner, for status.
    async fn leases(&self) -> Result<Vec<LeaseView>, SourceError>;

    /// Writes this instance's row.
    async fn heartbeat(&self, beat: &Heartbeat) -> Result<(), SourceError>;

    /// Removes this instance's row.
    async fn goodbye(&self, instance: Uuid) -> Result<(), SourceError>;

    /// A sample of the backlog. Bounded work, whatever the table holds.
    async fn backlog(&self) -> Result<Backlog, SourceError>;

    /// Removes what is past its retention, at most `limit` rows of each table (Postgres drops whole day partitions of the
    /// history). Also makes the partitions that the coming days need. Returns the number removed.
    async fn purge(&self, retention: &Retention, limit: u32) -> Result<u64, SourceError>;

    /// Opens the wake-up channel, on a connection of its own. `None` where there is none (wake by
    /// polling).
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>, SourceError>;

    /// Asks writers to notify for the coming `span`; zero withdraws it.
    async fn set_wake_mark(&self, span: Duration) -> Result<(), SourceError>;

    /// Wakes every instance that has its wake-up channel open: whoever sleeps is to look who else is there.
    async fn wake_instances(&self) -> Result<(), SourceError>;

    /// Ends every connection.
    async fn close(&self);
}

/// The wake-up channel. A hint only: a missed wake-up costs latency, never an event.
#[async_trait]
pub trait Listener: Send + 'static {
    /// Waits for the next wake-up. An error means that the channel is broken: open a new one, and poll once
    /// after that. Cancel safe.
    async fn wait(&mut self) -> Result<(), SourceError>;

    /// Proves that the connection answers. Needs a time limit of its own.
    async fn probe(&mut self) -> Result<(), SourceError>;
}

/// Payloads above this many bytes are not fetched with a batch, only one at a time.
pub const INLINE_LIMIT: usize = 128 * 1024;

/// What a forward read may bring: it ends with the row that fills one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBounds {
    /// Rows, with and without a body.
    pub rows: u32,
    /// Rows with a body.
    pub bodies: u32,
}

impl ReadBounds {
    /// So many rows, whatever they carry.
    pub fn rows(rows: u32) -> Self {
        Self { rows, bodies: rows }
    }
}

/// What [`Source::open`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Number of shards stored in the lease table.
    pub shards: u16,
    /// Identity of the database's history: changes with a restore or a promotion.
    pub incarnation: String,
    /// Ordinary facts worth a log line or a warning, in words.
    pub remarks: Vec<String>,
}

/// Transactions in flight that have written, or may yet write, to the outbox table. Names are opaque and
/// unique for the life of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writers {
    /// Sessions' transactions.
    pub running: Vec<String>,
    /// Prepared (two-phase) transactions.
    pub prepared: Vec<String>,
}

/// Where a sweep goes on. Opaque to the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepMark {
    /// Last key seen; `None` once the keyless rows are being walked.
    pub key: Option<Arc<str>>,
    /// Last seq seen among the keyless rows.
    pub seq: i64,
}

/// One slice of a sweep.
#[derive(Debug, Clone, Default)]
pub struct Sweep {
    /// Heads of keys, and keyless rows.
    pub heads: Vec<Head>,
    /// Where the next slice starts; `None`: the table is through.
    pub next: Option<SweepMark>,
}

/// A row that the sweep looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Place.
    pub seq: i64,
    /// Key.
    pub ordering_key: Option<Arc<str>>,
    /// Kind.
    pub kind: String,
    /// It may go now, as far as the table knows. A hint: whoever acts on it reads the row.
    pub due: bool,
}

/// A row that falls due later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Place.
    pub seq: i64,
    /// Key.
    pub ordering_key: Option<Arc<str>>,
    /// Time until it is due.
    pub due_in: Duration,
    /// The moment, by the source's clock.
    pub due: Timestamp,
}

/// Operators' commands, as claimers read them.
#[derive(Debug, Clone, Default)]
pub struct Commands {
    /// The highest id there is: pass it to the next call.
    pub mark: i64,
    /// Commands, ascending by id.
    pub items: Vec<Command>,
    /// Everything that is paused, if that may have changed.
    pub pauses: Option<Vec<Pause>>,
}

/// One command of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// These rows re-entered behind the cursor: look at them.
    Look {
        /// Places.
        seqs: Vec<i64>,
    },
    /// These rows need no longer wait for their time: it is over, or they are to be set aside.
    Hurry {
        /// Places.
        seqs: Vec<i64>,
    },
}

impl Command {
    /// The places that it names.
    pub fn seqs(&self) -> &[i64] {
        match self {
            Self::Look { seqs } | Self::Hurry { seqs } => seqs,
        }
    }
}

/// What a renewal told.
#[derive(Debug, Clone)]
pub struct Renewed {
    /// The leases that still hold.
    pub held: Vec<Lease>,
    /// Identity of the database's history.
    pub incarnation: String,
    /// The highest seq handed out so far.
    pub last_seq: i64,
}

/// One shard for status.
#[derive(Debug, Clone, Serialize)]
pub struct LeaseView {
    /// Slice.
    pub shard: u16,
    /// Instance that holds it.
    pub owner: Option<Uuid>,
    /// Fence.
    pub token: i64,
    /// Time left by the database's clock; negative when expired.
    pub expires_in_s: f64,
}

/// An instance's sign of life.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The instance.
    pub instance: Uuid,
    /// Host name.
    pub host: String,
    /// Version of outboxd.
    pub version: &'static str,
    /// Its wake-up channel is open.
    pub listening: bool,
    /// Its feeds and states as JSON, for `status`.
    pub report: String,
}

/// A sample of the backlog.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Backlog {
    /// Rows pending; counted up to a bound, so a floor when `bounded`.
    pub events: u64,
    /// The count stopped at its bound.
    pub bounded: bool,
    /// Age of the oldest row that is due, in seconds since it fell due; `None` when nothing is due.
    pub oldest_ready_age_s: Option<f64>,
}

/// How long things are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Published rows.
    pub published: Duration,
    /// What is kept of them.
    pub keep: PublishedKeep,
    /// Discarded rows.
    pub discarded: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        Self {
            published: Duration::from_secs(7 * DAY),
            keep: PublishedKeep::Full,
            discarded: Duration::from_secs(90 * DAY),
        }
    }
}

/// What is kept of a published event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub enum PublishedKeep {
    /// Nothing.
    None,
    /// Identity, sink, stream and position.
    Receipt,
    /// The whole event as well, so that it can be replayed.
    #[default]
    Full,
}

impl PublishedKeep {
    /// The word in the configuration.
    #[cfg(feature = "postgres")]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Receipt => "receipt",
            Self::Full => "full",
        }
    }
}

/// What the caller of a source can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// The database cannot be reached, is out of connections, or took too long: wait and try again.
    Unavailable,
    /// The database answers and takes no write at all: a standby, an old primary that came back. No outcome could be
    /// written, so nothing may be sent; wait, and connect anew.
    ReadOnly,
    /// The database answered and refused this statement: a batch is split to find the bad part.
    Refused,
    /// An operator has to act: not migrated, newer schema, wrong shard count, missing right, a pooler
    /// that was not declared. Trying again later is still right.
    Unusable,
}

/// A failed call to a source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// What the caller can do.
    pub kind: SourceErrorKind,
    /// What happened and what to do, in words, without secrets.
    pub message: String,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl SourceError {
    /// An error in words.
    pub fn new(kind: SourceErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }
}
