//! What a claimer is told, and what its reads bring.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ractor::ActorCell;
use tokio::time::Instant;

use super::feed::action::{CatchUpPlan, Origin, Park, ReadPlan};
use super::opening::Start;
use crate::actor::settler::Settled;
use crate::lease::Deadline;
use crate::source::{Begun, Commands, Due, Members, Renewed, Row, SourceError, Sweep, Writers};

/// Messages of a claimer. The number in front is the epoch, the second the feed.
pub enum Message {
    /// Begin to open, or try again.
    Open(u64),
    /// Opening ended.
    Opened(u64, Result<Option<Box<Start>>, SourceError>),
    /// A renewal ended; it was sent at this moment.
    Renewed(u64, Deadline, Result<Renewed, SourceError>),
    /// Who shares the shards.
    Members(u64, Members),
    /// Time to look what is due.
    Tick(u64),
    /// The channel says that something was written.
    Wake,
    /// The channel opened or was lost.
    Listening(bool),
    /// The mark was written, or not.
    Marked(u64, bool),
    /// A forward read ended.
    Read(u64, usize, u64, ReadPlan, Result<Seen, SourceError>),
    /// A catch-up read ended.
    CaughtUp(u64, usize, u64, CatchUpPlan, Result<Seen, SourceError>),
    /// Rows read by number arrived.
    Fetched(
        u64,
        usize,
        u64,
        Vec<i64>,
        Origin,
        Result<Vec<Row>, SourceError>,
    ),
    /// A look at writers and gaps ended.
    Looked(u64, Box<Look>),
    /// Operators' commands arrived.
    Commanded(u64, Result<Commands, SourceError>),
    /// Time for a sweep.
    Sweep,
    /// A slice of a sweep arrived, and the commands read after it.
    Swept(u64, usize, u64, Result<(Sweep, Commands), SourceError>),
    /// A page of due times arrived, to find keys that had to be dropped.
    Walked(u64, usize, Result<Vec<Due>, SourceError>),
    /// A page of what older routes began arrived.
    Begun(u64, Result<Begun, SourceError>),
    /// A sequencer ended, in these words.
    Ended(ActorCell, String),
    /// The leases know what is about to be handed over, or could not be told.
    Noted(u64, bool),
    /// Outcomes were committed.
    Settled(u64, Vec<Settled>),
    /// The database takes no writes, in these words.
    ReadOnly(u64, String),
    /// A sequencer's key cannot go on.
    Parked(u64, usize, Park),
    /// Events came back unsent.
    Returned(u64, usize, Vec<i64>),
    /// The answer for an event is lost, after its sequencer was told to send nothing more.
    Unanswered(u64, usize, i64),
    /// Everything that the settler had is written.
    Flushed(u64),
    /// Stop: finish what is out by this moment, give the rest back.
    Drain(Instant),
    /// The time for the drain of this number is over.
    DrainOver(u64),
    /// The leases are released.
    Released,
}

impl Message {
    /// Does it say what became of events, or bring more of them?
    pub(super) fn concerns_events(&self) -> bool {
        match self {
            Self::Read(..)
            | Self::CaughtUp(..)
            | Self::Fetched(..)
            | Self::Looked(..)
            | Self::Commanded(..)
            | Self::Sweep
            | Self::Swept(..)
            | Self::Walked(..)
            | Self::Begun(..)
            | Self::Ended(..)
            | Self::Settled(..)
            | Self::Parked(..)
            | Self::Returned(..)
            | Self::Unanswered(..)
            | Self::Flushed(_) => true,
            Self::Open(_)
            | Self::Opened(..)
            | Self::Renewed(..)
            | Self::Members(..)
            | Self::Tick(_)
            | Self::Wake
            | Self::Listening(_)
            | Self::Marked(..)
            | Self::Noted(..)
            | Self::ReadOnly(..)
            | Self::Drain(_)
            | Self::DrainOver(_)
            | Self::Released => false,
        }
    }
}

#[cfg(feature = "cluster")]
impl ractor::Message for Message {}

/// What a look found.
pub struct Look {
    /// The mark was known to be set when the look began.
    pub armed: bool,
    /// Who is writing; `None` inside: a single writer.
    pub writers: Result<Option<Writers>, SourceError>,
    /// The gaps of each feed that has any.
    pub gaps: Vec<LookedInto>,
}

/// A row found: seq and key.
pub type Pair = (i64, Option<Arc<str>>);

/// What a look into one feed's gaps found.
pub struct LookedInto {
    /// The feed.
    pub feed: usize,
    /// The gaps asked for.
    pub asked: Vec<RangeInclusive<i64>>,
    /// Rows found in them, with their keys.
    pub found: Result<Vec<Pair>, SourceError>,
    /// The look came to its end.
    pub complete: bool,
}

/// What a read saw.
pub struct Seen {
    /// The rows.
    pub rows: Vec<Row>,
    /// (seq, key) of rows that stood in open gaps after the read. A row that was committed before one of
    /// `rows` is among them, or was there before: nothing of its key may leave before it.
    pub late: Vec<Pair>,
}
