//! One feed: from a source to one sink. Decides what to read, what goes to which sequencer, and what
//! waits; pure, so that time and every answer of the database come in as arguments.
//!
//! ```text
//!            forward read            catch-up read
//!   table ──> cursor ──> Forward key ──────────────> sequencer
//!                └─────> Behind key: passed over ──> (time, drained) ──> own run read ──┘
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use self::action::{Action, Actions, Origin, ReadPlan, with_body};
use super::budget::Budget;
use super::cursor::Cursor;
use super::holds::Holds;
use super::keys::{Flow, KeyState, OrderKey, Wait};
use super::parked::Parked;
use super::recent::Recent;
use super::unrouted::Unrouted;
use crate::lease::Owned;
use crate::relay::GapGuard;
use crate::route::Routes;
use crate::source::Row;

pub mod action;
mod back;
mod behind;
mod found;
mod hand;
pub mod hold;

/// Most rows of one forward read, unless most of them are passed over.
pub const BATCH: usize = 500;
/// Most rows of one forward read while most are passed over: they come without bodies and cost little, and what
/// stands behind them waits.
const SKIM: usize = 5_000;
/// Most keys whose bodies a forward read leaves out by name.
const BARE_KEYS: usize = 128;
/// Gaps told apart.
const MAX_GAPS: usize = 2_048;
/// Keys for which the highest sent seq is remembered while gaps are open.
const MAX_HIGH: usize = 100_000;

/// The bounds of a feed.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Events held.
    pub events: usize,
    /// Bytes held.
    pub bytes: usize,
    /// Keys parked in memory.
    pub parked: usize,
    /// What reading does about gaps.
    pub guard: GapGuard,
    /// Late commits are possible at all.
    pub watch_gaps: bool,
}

/// The state of one feed.
pub struct Feed {
    sink: Arc<str>,
    routes: Routes,
    cursor: Cursor,
    keys: HashMap<Arc<str>, KeyState>,
    alone: HashMap<i64, KeyState>,
    parked: Parked,
    ready: VecDeque<OrderKey>,
    budget: Budget,
    outstanding: HashMap<i64, (Option<Arc<str>>, usize)>,
    recent: Recent,
    bare: VecDeque<Arc<str>>,
    /// Most rows of the last forward read came without a body.
    skims: bool,
    fetching: HashSet<i64>,
    /// Rows that an operator put back while their outcome was still on its way here: read again after it.
    again: HashMap<i64, Origin>,
    /// Rows that commands name before reading forward has come to them.
    expected: HashMap<i64, Origin>,
    high: HashMap<u64, i64>,
    /// Rows up to here may have been handed over by an earlier incarnation.
    repeat_below: i64,
    /// Whose rows concern it; the others are another instance's.
    owned: Owned,
    /// They killed whoever handled them, and are set aside instead of sent.
    condemned: HashSet<i64>,
    /// How often whoever handled an event ended unexpectedly.
    falls: HashMap<i64, u32>,
    unrouted: Unrouted,
    holds: Holds,
    /// Keys that wait for an operator's word, at most `max_held_back` of them.
    held_back: HashSet<OrderKey>,
    max_held_back: usize,
    /// Keys that waited may be in the table only.
    forgotten: bool,
    forgettings: u64,
    /// The table has to be searched for them now; the last search left some where they are.
    search: bool,
    left_held: bool,
    /// Events without a key that were asked for, and come back if they are not taken.
    recalled: HashSet<i64>,
    /// Halted keys of which nothing is out any more.
    drained: Vec<Arc<str>>,
}

impl Feed {
    /// A feed that has read nothing. Rows with `seq <= repeat_below` may have been sent before.
    pub fn new(sink: Arc<str>, routes: Routes, limits: Limits, repeat_below: i64) -> Self {
        Self {
            sink,
            routes,
            cursor: Cursor::new(limits.guard, limits.watch_gaps, MAX_GAPS),
            keys: HashMap::new(),
            alone: HashMap::new(),
            parked: Parked::new(limits.parked),
            ready: VecDeque::new(),
            budget: Budget::new(limits.events, limits.bytes),
            outstanding: HashMap::new(),
            recent: Recent::default(),
            bare: VecDeque::new(),
            skims: false,
            fetching: HashSet::new(),
            again: HashMap::new(),
            expected: HashMap::new(),
            high: HashMap::new(),
            repeat_below,
            owned: Owned::all(),
            condemned: HashSet::new(),
            falls: HashMap::new(),
            unrouted: Unrouted::default(),
            holds: Holds::default(),
            held_back: HashSet::new(),
            max_held_back: limits.parked.max(1),
            forgotten: false,
            forgettings: 0,
            search: false,
            left_held: false,
            recalled: HashSet::new(),
            drained: Vec::new(),
        }
    }

    /// Concerns itself with rows of these shards only. All rows move the cursor, whoever owns them: their numbers are
    /// one sequence.
    pub fn own(&mut self, owned: Owned) {
        self.owned = owned;
    }

    /// Sets these aside when their turn comes.
    pub fn condemn(&mut self, seqs: impl Iterator<Item = i64>) {
        self.condemned.extend(seqs);
    }

    /// Most events in hand, however many the budget has.
    pub fn limit(&mut self, events: usize) {
        self.budget.limit(events);
    }

    /// The key of an event that is handed over and not settled.
    pub fn key_of(&self, seq: i64) -> Option<Option<Arc<str>>> {
        self.outstanding.get(&seq).map(|(key, _)| key.clone())
    }

    fn owns(&self, key: Option<&Arc<str>>, seq: i64) -> bool {
        self.owned.includes(key.map(|key| &**key), seq)
    }

    /// The sink's name.
    pub fn sink(&self) -> &Arc<str> {
        &self.sink
    }

    /// The cursor with its gaps.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// The cursor with its gaps, to take in looks.
    pub fn cursor_mut(&mut self) -> &mut Cursor {
        &mut self.cursor
    }

    /// Settled seqs that reads under way may still show.
    pub fn recent_mut(&mut self) -> &mut Recent {
        &mut self.recent
    }

    /// Events handed over and not settled.
    pub fn in_flight(&self) -> usize {
        self.outstanding.len()
    }

    /// Keys that wait for a time.
    pub fn parked(&self) -> &Parked {
        &self.parked
    }

    /// Rows without a route seen so far.
    pub fn unrouted_mut(&mut self) -> &mut Unrouted {
        &mut self.unrouted
    }

    /// Nothing is held, nothing is ready or being read: all that is left waits for a time.
    pub fn at_rest(&self) -> bool {
        // A key that drains has something outstanding, or it would be ready.
        self.outstanding.is_empty() && self.fetching.is_empty() && self.ready.is_empty()
    }

    // ---- forward -------------------------------------------------------------------------------

    /// The forward read to make now, if any. What it may bring is reserved until it returns.
    pub fn plan_read(&mut self) -> Option<ReadPlan> {
        if !self.cursor.may_read() || self.cursor.at() == i64::MAX {
            return None;
        }
        let bodies = self.budget.allowance(BATCH);
        if bodies == 0 {
            return None;
        }
        self.budget.reserve(bodies);
        Some(ReadPlan {
            after: self.cursor.at(),
            rows: if self.skims { SKIM } else { bodies },
            bodies,
            bare_keys: self
                .bare
                .iter()
                .filter(|key| self.is_behind(key))
                .cloned()
                .collect(),
        })
    }

    /// The table may hold earlier rows of a key that memory does not know.
    fn has_more_in_table(&self) -> bool {
        self.parked.overflowed() || self.forgotten
    }

    fn is_behind(&self, key: &Arc<str>) -> bool {
        self.keys
            .get(key)
            .is_some_and(|state| state.flow != Flow::Forward)
    }

    /// A forward read failed.
    pub fn read_failed(&mut self, plan: &ReadPlan) {
        self.budget.release(plan.bodies);
    }

    /// Takes in a forward read.
    pub fn on_read(&mut self, plan: &ReadPlan, rows: Vec<Row>, now: u64) -> Vec<Action> {
        self.budget.release(plan.bodies);
        self.skims = !plan.ran_dry(&rows) && with_body(&rows) * 2 < rows.len();
        let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        let usable = self.cursor.advance(&seqs, now);
        let mut out = Actions::default();
        for row in rows.into_iter().take(usable) {
            self.forward_row(row, now, &mut out);
        }
        self.prune_high();
        out.into()
    }

    fn forward_row(&mut self, row: Row, now: u64, out: &mut Actions) {
        let owned = self.owns(row.ordering_key.as_ref(), row.seq);
        if row.done || !owned || self.is_known(row.seq) {
            return;
        }
        let Some(route) = self.routes.to_sink(&row.kind, &self.sink).cloned() else {
            self.unrouted.see(&row.kind, &self.routes);
            return;
        };
        let Some(key) = row.ordering_key.clone() else {
            return self.take_alone(row, route, false, now, out);
        };
        let share = self.budget.key_share();
        let new_key = !self.keys.contains_key(&key);
        let must_look_back = new_key && self.has_more_in_table();
        let must_wait = self.must_wait(&row, &route);
        let room = self.budget.has_room();
        let state = self
            .keys
            .entry(Arc::clone(&key))
            .or_insert_with(|| KeyState::new(now));
        let full = !room || state.held >= state.cap(share);
        match &mut state.flow {
            Flow::Behind { passed, .. } => {
                *passed += 1;
                self.remember_bare(key);
            }
            Flow::Forward if must_look_back => self.fall_behind(&key, i64::MIN, Wait::Drain, now),
            Flow::Forward if must_wait => self.fall_behind(&key, row.seq, Wait::Paused, now),
            Flow::Forward if !row.due_in.is_zero() => {
                let until = due_at(now, &row);
                self.fall_behind(&key, row.seq, Wait::Until(until), now);
            }
            Flow::Forward if full || row.body.is_none() => {
                self.fall_behind(&key, row.seq, Wait::Drain, now);
            }
            Flow::Forward => self.hand_named(key, row, route, false, out),
        }
    }

    fn remember_bare(&mut self, key: Arc<str>) {
        if self.bare.contains(&key) {
            return;
        }
        if self.bare.len() == BARE_KEYS {
            self.bare.pop_front();
        }
        self.bare.push_back(key);
    }
}

fn due_at(now: u64, row: &Row) -> u64 {
    // One more, so that a row is never read again a fraction of a millisecond early.
    now.saturating_add(u64::try_from(row.due_in.as_millis()).unwrap_or(u64::MAX))
        .saturating_add(1)
}
