//! What a database remembers of its deliveries: what `verify` compares with what a sink holds.
//!
//! Everything is walked in short statements and handed over row by row, so that no size of a history is ever held.

use std::ops::ControlFlow;

use uuid::Uuid;

use crate::event::Timestamp;

/// A span of time: from `since` on, up to but not including `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its first moment.
    pub since: Timestamp,
    /// The moment after its last.
    pub until: Timestamp,
}

impl Window {
    /// Is this moment in it?
    pub fn contains(&self, at: Timestamp) -> bool {
        self.since <= at && at < self.until
    }

    /// The same with so many microseconds more at both ends.
    #[must_use]
    pub fn widened(&self, micros: i64) -> Self {
        Self {
            since: Timestamp(self.since.0.saturating_sub(micros)),
            until: Timestamp(self.until.0.saturating_add(micros)),
        }
    }
}

/// A delivery that the database vouches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered<'a> {
    /// Place of the event in the outbox.
    pub seq: i64,
    /// Its identity.
    pub id: Uuid,
    /// Its key.
    pub ordering_key: Option<&'a str>,
    /// When it was written down, by the source's clock.
    pub at: Timestamp,
    /// Where the sink said that it put it.
    pub stream: Option<&'a str>,
    /// At which place there.
    pub position: Option<u64>,
    /// It stands in the history. Otherwise there is only the mark beside an event that still waits for other
    /// sinks, or for its owner.
    pub receipt: bool,
}

/// Takes deliveries one by one; a break ends the walk.
pub type Take<'a> = &'a mut (dyn FnMut(Delivered<'_>) -> ControlFlow<()> + Send);

/// What else a window holds for a sink.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events that occurred in the window and that the sink is not done with, by kind.
    pub pending: Vec<(String, u64)>,
    /// Events set aside in the window for this sink.
    pub discarded: u64,
    /// The history, of whichever sink, begins before the window.
    pub reaches_back: bool,
}

impl Tally {
    /// So many more of this kind are pending.
    pub(crate) fn add(&mut self, kind: String, count: u64) {
        if count == 0 {
            return;
        }
        match self.pending.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, counted)) => *counted += count,
            None => self.pending.push((kind, count)),
        }
    }
}

/// What the database knows of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It waits, for whichever sink.
    Pending,
    /// It stands in the history.
    Published,
    /// It was set aside.
    Discarded,
}

impl Known {
    /// The first of these that is true.
    pub(crate) fn of(pending: bool, published: bool, discarded: bool) -> Option<Self> {
        match (pending, published, discarded) {
            (true, _, _) => Some(Self::Pending),
            (_, true, _) => Some(Self::Published),
            (_, _, true) => Some(Self::Discarded),
            _ => None,
        }
    }
}

/// What an operator did to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hand {
    /// Put it back after it had been set aside.
    Requeued,
    /// Deleted it after it had been set aside.
    Dropped,
}

impl Hand {
    /// The action as the audit writes it.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn of(action: &str) -> Option<Self> {
        match action {
            "requeue" => Some(Self::Requeued),
            "drop" => Some(Self::Dropped),
            _ => None,
        }
    }
}
