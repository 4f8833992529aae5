//! Draining: nothing new is read or sent, what is out may finish in time. Then the claimer ends, or opens again for another
//! share of the shards.

use std::collections::HashSet;

use tokio::time::Instant;
use tracing::{info, warn};

use super::active::Active;
use super::{Message, Phase, State, Tag};
use crate::actor::database;
use crate::actor::handle::{Task, guarded};
use crate::actor::keeper;
use crate::actor::publisher;
use crate::actor::settler::Settled;
use crate::lease::Lease;
use crate::status::DatabaseState;
use crate::testing::fail_points::fail_point;
use std::sync::Arc;
use std::time::Duration;

/// Limit for giving the leases back.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// What a shutdown found, per database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Events acknowledged and settled during the drain.
    pub acked: u64,
    /// Events given back unsent.
    pub returned: u64,
    /// Events whose outcome is not known, or not written.
    pub unknown: u64,
}

impl std::ops::AddAssign for Drained {
    fn add_assign(&mut self, other: Self) {
        self.acked += other.acked;
        self.returned += other.returned;
        self.unknown += other.unknown;
    }
}

/// What follows a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The end: the leases are given back.
    Stop,
    /// Another share of the shards.
    Share,
}

/// A drain under way.
pub struct Draining {
    then: Then,
    number: u64,
    active: Option<Box<Active>>,
    out: HashSet<(usize, i64)>,
    report: Drained,
    flushing: bool,
    /// An attempt to open is under way: what it takes has to be given back.
    opening: bool,
}

impl Draining {
    /// Outcomes were committed.
    pub fn settled(&mut self, list: &[Settled]) {
        for settled in list {
            if self.out.remove(&(settled.feed, settled.seq)) {
                self.report.acked += u64::from(settled.applied && settled.done);
            }
        }
    }

    /// Events came back unsent.
    pub fn returned(&mut self, feed: usize, seqs: &[i64]) {
        for seq in seqs {
            if self.out.remove(&(feed, *seq)) {
                self.report.returned += 1;
            }
        }
    }

    /// An event was sent, and its answer is lost.
    pub fn unanswered(&mut self, feed: usize, seq: i64) {
        if self.out.remove(&(feed, seq)) {
            self.report.unknown += 1;
        }
    }

    /// Nothing may be sent any more.
    pub fn revoke(&self) {
        if let Some(active) = &self.active {
            active.ownership().revoke();
        }
    }
}

impl State {
    /// Stops reading and sending; the parent hears when what is out has ended.
    pub(super) fn drain(&mut self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        if let Phase::Draining(draining) = &self.phase
            && draining.then == Then::Stop
        {
            return;
        }
        self.show(DatabaseState::Draining, None);
        self.tell_keeper(keeper::Mode::Quiet);
        self.listener = None;
        // Others may reckon without this one from now on.
        let (source, instance) = (
            Arc::clone(&self.arguments.source),
            self.arguments.settings.instance,
        );
        self.departure = Some(Task::spawn(async move {
            let _ = guarded(source.attend(instance, Duration::ZERO, true)).await;
        }));
        self.begin_drain(Then::Stop, left);
    }

    /// Stops reading and sending, and goes on when what is out has ended, or when its time is over.
    pub(super) fn begin_drain(&mut self, then: Then, limit: Duration) {
        self.drains += 1;
        let number = self.drains;
        self.myself
            .send_after(limit, move || Message::DrainOver(number));
        if let Phase::Draining(draining) = &mut self.phase {
            (draining.then, draining.number) = (then, number);
            return self.check_drained();
        }
        let opening =
            matches!(self.phase, Phase::Opening | Phase::Standby) && !self.tasks.is_empty();
        let phase = std::mem::replace(&mut self.phase, Phase::Opening);
        let mut draining = Draining {
            then,
            number,
            active: None,
            out: HashSet::new(),
            report: Drained::default(),
            flushing: false,
            opening,
        };
        if let Phase::Active(mut active) = phase {
            active.tasks.abort_all();
            active.ownership().close();
            let withheld = active.withheld();
            for (index, slot) in active.slots.iter_mut().enumerate() {
                slot.hands.halt_all();
                slot.context
                    .publisher
                    .handle
                    .send(publisher::Message::Purge);
                let seqs = slot.feed.outstanding();
                draining.out.extend(seqs.map(|seq| (index, seq)));
            }
            for (index, action) in withheld {
                let seqs: Vec<i64> = action.seqs().collect();
                draining.returned(index, &seqs);
            }
            draining.active = Some(active);
        }
        self.phase = Phase::Draining(draining);
        self.check_drained();
    }

    /// Goes on once nothing is out.
    pub(super) fn check_drained(&mut self) {
        if let Phase::Draining(draining) = &mut self.phase
            && draining.out.is_empty()
            && !draining.flushing
            && !draining.opening
        {
            draining.flushing = true;
            self.flush(Tag::Drained);
        }
    }

    /// The grace is over: what is still out stays unknown.
    pub(super) fn drain_over(&mut self, number: u64) {
        // Also when a flush is under way: a settler or a database that is gone does not answer it.
        if let Phase::Draining(draining) = &mut self.phase
            && draining.number == number
            && (draining.active.is_some() || !draining.flushing)
        {
            draining.flushing = true;
            draining.report.unknown += draining.out.len() as u64;
            let database = &self.arguments.database;
            warn!(
                %database,
                unknown = draining.report.unknown,
                "the time is over with events still out; they are delivered again under the same ids"
            );
            self.release_leases();
        }
    }

    /// Gives the leases back, so that another instance can go on at once.
    pub(super) fn release_leases(&mut self) {
        let Phase::Draining(draining) = &mut self.phase else {
            return;
        };
        let then = draining.then;
        let leases = match draining.active.take() {
            Some(mut active) => {
                active.end();
                active.ownership().leases()
            }
            None => std::mem::take(&mut self.kept),
        };
        match then {
            Then::Share => {
                self.kept = leases;
                self.flush_and_open();
            }
            Then::Stop if leases.is_empty() => {
                let _ = self.myself.cast(Message::Released);
            }
            Then::Stop => self.give_back(leases),
        }
    }

    /// An attempt to open ended during the drain: nothing is kept of it.
    pub(super) fn opened_draining(&mut self, leases: Vec<Lease>) {
        if let Phase::Draining(draining) = &mut self.phase
            && std::mem::take(&mut draining.opening)
        {
            if leases.is_empty() {
                self.check_drained();
            } else {
                draining.flushing = true;
                self.give_back(leases);
            }
        }
    }

    fn give_back(&mut self, leases: Vec<Lease>) {
        let source = Arc::clone(&self.arguments.source);
        let myself = self.myself.clone();
        let database = Arc::clone(&self.arguments.database);
        self.tasks.push(Task::spawn(async move {
            fail_point!(Drained);
            let released = tokio::time::timeout(RELEASE_LIMIT, source.release(&leases)).await;
            match released {
                Ok(Ok(())) => info!(%database, shards = leases.len(), "leases released"),
                _ => warn!(
                    %database,
                    shards = leases.len(),
                    "leases could not be released; they end by themselves within the lease time"
                ),
            }
            fail_point!(Released);
            let _ = myself.cast(Message::Released);
        }));
    }

    /// The leases are given back: the parent may end this actor.
    pub(super) fn released(&mut self) {
        if let Phase::Draining(draining) = &self.phase {
            let report = draining.report;
            let _ = self
                .arguments
                .parent
                .cast(database::Message::Drained(report));
        }
    }
}
