//! What goes in and out of a feed's decisions: plans of reads, work for sequencers, words of sequencers.

use std::collections::HashMap;
use std::sync::Arc;

use crate::actor::claimer::keys::{OrderKey, Strikes};
use crate::event::Event;
use crate::route::Route;
use crate::source::DiscardReason;
use crate::source::Row;

/// An event on its way, with what the relay knows of it.
#[derive(Debug, Clone)]
pub struct Work {
    /// The event.
    pub event: Arc<Event>,
    /// Its route.
    pub route: Arc<Route>,
    /// Charged failures.
    pub attempts: u32,
    /// Uncharged failures in a row.
    pub strikes: Strikes,
    /// An earlier hand-over may have stored it.
    pub may_be_repeat: bool,
    /// It re-entered its key by an operator's word: no inversion.
    pub reentered: bool,
    /// To be set aside instead of sent.
    pub skip: Option<Aside>,
}

/// Why an event is set aside instead of sent, and in which words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aside {
    /// Why.
    pub reason: DiscardReason,
    /// Shown as its last error.
    pub words: Arc<str>,
}

/// What the claimer has to do.
#[derive(Debug)]
pub enum Action {
    /// Give this work to the key's sequencer (`None`: the one for events without a key).
    Hand {
        /// The key.
        key: Option<Arc<str>>,
        /// Ascending by seq.
        work: Vec<Work>,
        /// The highest seq that an earlier sequencer of the key may have sent.
        floor: i64,
    },
    /// Read these rows whole, one at a time.
    Fetch(Vec<i64>),
}

impl Action {
    /// The events that it hands over.
    pub fn seqs(&self) -> impl Iterator<Item = i64> {
        let work = match self {
            Self::Hand { work, .. } => work.as_slice(),
            Self::Fetch(_) => &[],
        };
        work.iter().map(|work| work.event.seq)
    }
}

/// A forward read to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPlan {
    /// Rows above this.
    pub after: i64,
    /// At most so many rows, with and without a body.
    pub rows: usize,
    /// At most so many with a body.
    pub bodies: usize,
    /// Keys whose bodies are not needed.
    pub bare_keys: Vec<Arc<str>>,
}

impl ReadPlan {
    /// Did a read by this plan end because no more rows were there?
    pub fn ran_dry(&self, rows: &[Row]) -> bool {
        rows.len() < self.rows && with_body(rows) < self.bodies
    }
}

/// How many rows came with their bodies.
pub fn with_body(rows: &[Row]) -> usize {
    rows.iter().filter(|row| row.body.is_some()).count()
}

/// A catch-up read to make.
#[derive(Debug, Clone, Default)]
pub struct CatchUpPlan {
    /// Keys with their lowest wanted seq.
    pub keys: Vec<(Arc<str>, i64)>,
    /// Most rows of one key.
    pub per_key: usize,
    /// Rows above this are the forward read's: where the cursor stood when the read was planned.
    pub up_to: i64,
    /// Events without a key.
    pub alone: Vec<i64>,
    /// Budget kept for what it may bring.
    pub reserved: usize,
}

/// Where a row read by its number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It turned up in a gap.
    Gap,
    /// An operator's command names it: it re-entered its key.
    Command,
    /// An operator's command names it: it need no longer wait.
    Hurry,
    /// The sweep found it: reading forward missed it.
    Sweep,
    /// Its body was too large for a batch.
    Large,
}

impl Origin {
    /// What is read goes to its key from there, and from nowhere else meanwhile. For a row that need no longer wait
    /// only what waits for it is woken: others may find it meanwhile, or it would be lost when nobody waits.
    pub fn hands_over(self) -> bool {
        self != Self::Hurry
    }
}

/// A sequencer's word that its key cannot go on now.
#[derive(Debug)]
pub struct Park {
    /// The key.
    pub key: OrderKey,
    /// The event that waits.
    pub head: i64,
    /// Pause from now, milliseconds.
    pub pause: u64,
    /// The head's outcome is on its way to the database; it counts as held until then.
    pub settling: bool,
    /// Uncharged failures of the head.
    pub strikes: Strikes,
    /// Events up to here may have been stored.
    pub repeat: Option<i64>,
    /// Events behind the head that come back unsent (the head too unless it is settling).
    pub returned: Vec<i64>,
}

/// Collects actions, events of one key together.
#[derive(Default)]
pub(super) struct Actions {
    list: Vec<Action>,
    by_key: HashMap<Option<Arc<str>>, usize>,
    fetch: Vec<i64>,
}

impl Actions {
    pub(super) fn hand(&mut self, key: Option<Arc<str>>, work: Work, floor: i64) {
        if let Some(index) = self.by_key.get(&key)
            && let Some(Action::Hand { work: list, .. }) = self.list.get_mut(*index)
        {
            list.push(work);
            return;
        }
        self.by_key.insert(key.clone(), self.list.len());
        self.list.push(Action::Hand {
            key,
            work: vec![work],
            floor,
        });
    }

    pub(super) fn fetch(&mut self, seq: i64) {
        self.fetch.push(seq);
    }

    pub(super) fn last_alone(&mut self, seq: i64) -> Option<&mut Work> {
        let index = *self.by_key.get(&None)?;
        match self.list.get_mut(index)? {
            Action::Hand { work, .. } => work.iter_mut().rfind(|work| work.event.seq == seq),
            Action::Fetch(_) => None,
        }
    }
}

impl From<Actions> for Vec<Action> {
    fn from(mut actions: Actions) -> Self {
        if !actions.fetch.is_empty() {
            actions.list.push(Action::Fetch(actions.fetch));
        }
        actions.list
    }
}
