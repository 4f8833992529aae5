//! The comparison of two trails. Pure: what is read, and what is looked up again, comes in as arguments.
//!
//! ```text
//!   database ── record ──►┐                                        ┌──► strangers ── looked up ──► know, phantom
//!                         ├─ events: id, place, time, flags ───────┼──► late ── requeued? ──► excuse
//!   sink ───── message ──►┘  keys: last seq                        └──► look_back ── earlier ──► missing ── name
//! ```
//!
//! The calls come in this order. What a first look finds wrong is held until the second look; only what is still wrong
//! then is counted.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher as _;

use uuid::Uuid;

use super::SLACK;
use super::report::{Finding, Offender, Report};
use crate::event::Timestamp;
use crate::sink::trail::{Extent, Held};
use crate::source::trail::{Delivered, Window};

mod fate;
mod second_look;
#[cfg(test)]
mod tests;

/// Offenders whose key is remembered until it is known whether they are some.
const KEYS_KEPT: usize = 1_000;

/// Stands for a place that nobody knows.
const NOWHERE: u64 = u64::MAX;

// What is known of an event, in the lowest byte of `Event::stamp`.
const FLAGS: u64 = 0xff;
/// The database vouches for it.
const RECORDED: u64 = 1;
/// It does so by a row of its history.
const RECEIPT: u64 = 2;
/// It was delivered in the window.
const JUDGED: u64 = 4;
/// Its receipt names this container, or none.
const HERE: u64 = 8;
/// The sink holds it.
const HELD: u64 = 16;
/// It should be held, and is not.
const MISSING: u64 = 32;
/// Its name was told.
const NAMED: u64 = 64;
/// The sink holds it under another message id, because it was replayed.
const REPLAYED: u64 = 128;

/// What is compared.
#[derive(Debug, Clone)]
pub struct Scope {
    /// What is judged. What lies within [`SLACK`] around it is read as well.
    pub window: Window,
    /// The present.
    pub now: Timestamp,
    /// The stream or file, as receipts name it.
    pub container: String,
    /// How far the database remembers.
    pub history: History,
    /// Most events; [`MOST_EVENTS`](super::MOST_EVENTS) unless a test says less.
    pub most: usize,
}

/// How far the database remembers.
#[derive(Debug, Clone, Copy)]
pub struct History {
    /// It keeps receipts at all.
    pub kept: bool,
    /// Receipts from this moment on are there.
    pub horizon: Timestamp,
    /// There are receipts from before the window.
    pub reaches_back: bool,
}

/// The window holds more events than can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the window holds more than {most} events: narrow it, with a later --since or an earlier --until"
)]
pub struct TooMany {
    /// The limit.
    pub most: usize,
}

/// A message of the window that had no receipt when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// The event's place in the outbox, as the message tells.
    pub seq: Option<i64>,
    /// The event's identity.
    pub id: Uuid,
    place: u64,
    at: Timestamp,
    key: Option<Box<str>>,
}

/// A message behind a later one of its key.
#[derive(Debug)]
struct Late {
    seq: i64,
    id: Uuid,
    place: u64,
    /// The latest seq of its key before it.
    behind: i64,
    key: Option<Box<str>>,
}

/// A mark of an event that the sink does not hold: it may stem from a requeue.
#[derive(Debug)]
struct Unsure {
    seq: i64,
    id: Uuid,
    key: Option<Box<str>>,
}

/// What is kept of an event: 16 bytes, beside its id.
#[derive(Debug, Clone, Copy)]
struct Event {
    /// Where it is held; before it was found, where its receipt says that it stands.
    place: u64,
    /// Microseconds since the beginning of what is read, and the flags.
    stamp: u64,
}

impl Event {
    fn is(self, flags: u64) -> bool {
        self.stamp & flags == flags
    }

    /// Delivered in the window, to here, and not found.
    fn is_missed(self) -> bool {
        self.is(RECORDED | JUDGED | HERE) && !self.is(HELD) && !self.is(REPLAYED)
    }

    /// When it was delivered; `base` is the beginning of what is read.
    fn at(self, base: i64) -> Timestamp {
        Timestamp(base.saturating_add((self.stamp >> 8) as i64))
    }
}

/// The comparison under way.
#[derive(Debug)]
pub struct Audit {
    scope: Scope,
    /// The window with its surroundings.
    read: Window,
    // Arrays, since a Uuid that is a number would be aligned to 16 bytes and make each entry larger.
    events: HashMap<[u8; 16], Event>,
    /// The last seq of each key, by a hash of 64 bits: of ten million keys two share one in a few runs of a million.
    keys: HashMap<u64, i64>,
    hasher: RandomState,
    strangers: Vec<Stranger>,
    late: Vec<Late>,
    unsure: Vec<Unsure>,
    /// The earliest receipt.
    first_receipt: Option<Timestamp>,
    /// Place and receipt's time of the first message that has one.
    first_known: Option<(u64, Timestamp)>,
    /// Places of the first and the last message that was looked at.
    looked_at: Option<(u64, u64)>,
    extent: Option<Extent>,
    report: Report,
}

impl Audit {
    /// Nothing is read yet.
    pub fn new(scope: Scope, database: &str, sink: &str) -> Self {
        let mut without_row = Finding::default();
        if !scope.history.kept {
            without_row = Finding::not_checked(
                "retention.published_keep is none: the database does not remember what it delivered",
            );
        }
        Self {
            read: scope.window.widened(slack()),
            scope,
            events: HashMap::new(),
            keys: HashMap::new(),
            hasher: RandomState::new(),
            strangers: Vec::new(),
            late: Vec::new(),
            unsure: Vec::new(),
            first_receipt: None,
            first_known: None,
            looked_at: None,
            extent: None,
            report: Report {
                database: database.to_owned(),
                sink: sink.to_owned(),
                ok: true,
                read_back: true,
                delivered: 0,
                held: 0,
                pending: 0,
                discarded: 0,
                in_flight: 0,
                aged_out: 0,
                elsewhere: 0,
                requeued: 0,
                unjudged: 0,
                missing: Finding::default(),
                without_row,
                duplicated: Finding::default(),
                out_of_order: Finding::default(),
                remarks: Vec::new(),
            },
        }
    }

    /// A delivery by the database's word.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn record(&mut self, delivered: &Delivered<'_>) -> Result<(), TooMany> {
        let judged = self.scope.window.contains(delivered.at);
        let here = delivered
            .stream
            .is_none_or(|stream| stream == self.scope.container);
        let mut flags = RECORDED;
        flags |= if judged { JUDGED } else { 0 };
        flags |= if here { HERE } else { 0 };
        if delivered.receipt {
            flags |= RECEIPT;
            let first = self.first_receipt.get_or_insert(delivered.at);
            *first = delivered.at.min(*first);
        }
        let stamp = self.stamp(delivered.at);
        let place = delivered.position.filter(|_| here).unwrap_or(NOWHERE);
        let full = self.events.len() >= self.scope.most;
        let too_many = TooMany {
            most: self.scope.most,
        };
        let newly_judged = match self.events.entry(delivered.id.into_bytes()) {
            Entry::Vacant(_) if full => return Err(too_many),
            Entry::Vacant(entry) => {
                entry.insert(Event {
                    place,
                    stamp: stamp | flags,
                });
                judged
            }
            Entry::Occupied(mut entry) => {
                // A receipt and a mark, or an id that was used again: the latest word counts.
                let event = entry.get_mut();
                let newly = judged && !event.is(JUDGED);
                flags |= event.stamp & FLAGS;
                event.stamp = stamp.max(event.stamp & !FLAGS) | flags;
                if place != NOWHERE {
                    event.place = place;
                }
                newly
            }
        };
        self.report.delivered += u64::from(newly_judged);
        Ok(())
    }

    /// A message of the sink, in the order of its places.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn message(&mut self, held: &Held) -> Result<(), TooMany> {
        let inside = self.scope.window.contains(held.at);
        self.report.held += u64::from(inside);
        let (first, last) = self.looked_at.get_or_insert((held.place, held.place));
        (*first, *last) = ((*first).min(held.place), (*last).max(held.place));
        if held.replay {
            self.report.unjudged += u64::from(inside);
            self.replayed(held);
            return Ok(());
        }
        let full = self.events.len() >= self.scope.most;
        let too_many = TooMany {
            most: self.scope.most,
        };
        let base = self.base();
        let recorded = match self.events.entry(held.id.into_bytes()) {
            Entry::Occupied(entry) if entry.get().is(HELD) => {
                if inside {
                    let first = entry.get().place;
                    self.report.duplicated.add(|| copy(held, first));
                }
                return Ok(());
            }
            Entry::Occupied(mut entry) => {
                let event = entry.get_mut();
                event.place = held.place;
                event.stamp |= HELD;
                self.first_known.get_or_insert((held.place, event.at(base)));
                true
            }
            // A file may hold years.
            Entry::Vacant(_) if !self.read.contains(held.at) => return Ok(()),
            Entry::Vacant(_) if full => return Err(too_many),
            Entry::Vacant(entry) => {
                entry.insert(Event {
                    place: held.place,
                    stamp: HELD,
                });
                false
            }
        };
        if !recorded && inside && self.scope.history.kept {
            let key = self.key_kept(self.strangers.len(), held.ordering_key.as_deref());
            self.strangers.push(Stranger {
                seq: held.seq,
                id: held.id,
                place: held.place,
                at: held.at,
                key,
            });
        }
        // What the database does not know may be of another outbox that had the same name, with seqs of its own.
        if recorded || !self.scope.history.kept {
            self.look_at_order(held, inside);
        }
        Ok(())
    }

    fn replayed(&mut self, held: &Held) {
        if let Some(event) = self.events.get_mut(held.id.as_bytes()) {
            event.stamp |= REPLAYED;
        }
    }

    fn look_at_order(&mut self, held: &Held, inside: bool) {
        let (Some(seq), Some(key)) = (held.seq, held.ordering_key.as_deref()) else {
            return;
        };
        let last = self.keys.entry(self.hasher.hash_one(key)).or_insert(seq);
        let behind = *last;
        *last = seq.max(behind);
        if seq < behind && inside {
            let key = self.key_kept(self.late.len(), Some(key));
            self.late.push(Late {
                seq,
                id: held.id,
                place: held.place,
                behind,
                key,
            });
        }
    }

    /// The beginning of what is read, which times are counted from.
    fn base(&self) -> i64 {
        self.read.since.0
    }

    fn stamp(&self, at: Timestamp) -> u64 {
        const LONGEST: i64 = (1 << 55) - 1;
        (at.0.saturating_sub(self.base()).clamp(0, LONGEST) as u64) << 8
    }

    fn key_kept(&self, count: usize, key: Option<&str>) -> Option<Box<str>> {
        key.filter(|_| count < KEYS_KEPT).map(Box::from)
    }
}

fn slack() -> i64 {
    SLACK.as_micros() as i64
}

fn copy(held: &Held, first: u64) -> Offender {
    Offender {
        id: held.id,
        seq: held.seq,
        key: held.ordering_key.clone(),
        position: Some(held.place),
        why: format!("it stands at {first} already"),
    }
}
