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

use super::budget::Budget;
use super::cursor::Cursor;
use super::keys::{Flow, KeyState, OrderKey, Wait};
use super::parked::Parked;
use super::recent::Recent;
use crate::event::Event;
use crate::relay::GapGuard;
use crate::route::{Route, Routes};
use crate::source::{Head, Row};

/// Most rows of one forward read.
pub const BATCH: usize = 500;
/// Most keys of one catch-up read.
const KEYS_PER_READ: usize = 64;
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
    pub strikes: u32,
    /// An earlier hand-over may have stored it.
    pub may_be_repeat: bool,
    /// It re-entered its key by an operator's word: no inversion.
    pub reentered: bool,
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

/// A forward read to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPlan {
    /// Rows above this.
    pub after: i64,
    /// At most so many.
    pub limit: usize,
    /// Keys whose bodies are not needed.
    pub bare_keys: Vec<Arc<str>>,
}

/// A catch-up read to make.
#[derive(Debug, Clone, Default)]
pub struct CatchUpPlan {
    /// Keys with their lowest wanted seq.
    pub keys: Vec<(Arc<str>, i64)>,
    /// Most rows of one key.
    pub per_key: usize,
    /// Events without a key.
    pub alone: Vec<i64>,
}

/// Where a row read by its number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It turned up in a gap.
    Gap,
    /// An operator's command names it.
    Command,
    /// The sweep found it: reading forward missed it.
    Sweep,
    /// Its body was too large for a batch.
    Large,
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
    pub strikes: u32,
    /// The head may have been stored.
    pub repeat: bool,
    /// Events behind the head that come back unsent (the head too unless it is settling).
    pub returned: Vec<i64>,
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
    fetching: HashSet<i64>,
    high: HashMap<u64, i64>,
    /// Rows up to here may have been handed over by an earlier incarnation.
    repeat_below: i64,
    unrouted: u64,
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
            fetching: HashSet::new(),
            high: HashMap::new(),
            repeat_below,
            unrouted: 0,
        }
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

    /// Keys that are behind for any reason.
    pub fn behind(&self) -> usize {
        let named = self.keys.values().filter(|key| key.flow != Flow::Forward);
        named.count() + self.alone.len()
    }

    /// Rows without a route seen so far.
    pub fn unrouted(&self) -> u64 {
        self.unrouted
    }

    /// Nothing is held, nothing is ready or being read: all that is left waits for a time.
    pub fn at_rest(&self) -> bool {
        self.outstanding.is_empty()
            && self.fetching.is_empty()
            && self.behind() == self.parked.len()
    }

    // ---- forward -------------------------------------------------------------------------------

    /// The forward read to make now, if any.
    pub fn plan_read(&self) -> Option<ReadPlan> {
        if !self.cursor.may_read() || self.cursor.at() == i64::MAX {
            return None;
        }
        let limit = self.budget.allowance(BATCH);
        let worth_it =
            limit >= BATCH / 8 || self.budget.held() == 0 || limit * 2 >= self.budget.free_events();
        (limit > 0 && worth_it).then(|| ReadPlan {
            after: self.cursor.at(),
            limit,
            bare_keys: self
                .bare
                .iter()
                .filter(|key| self.is_behind(key))
                .cloned()
                .collect(),
        })
    }

    fn is_behind(&self, key: &Arc<str>) -> bool {
        self.keys
            .get(key)
            .is_some_and(|state| state.flow != Flow::Forward)
    }

    /// Takes in a forward read.
    pub fn on_read(&mut self, rows: Vec<Row>, now: u64) -> Vec<Action> {
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
        if row.done || self.is_known(row.seq) {
            return;
        }
        let Some(route) = self.routes.to_sink(&row.kind, &self.sink).cloned() else {
            self.unrouted += 1;
            return;
        };
        let Some(key) = row.ordering_key.clone() else {
            return self.take_alone(row, route, false, now, out);
        };
        let share = self.budget.key_share();
        let new_key = !self.keys.contains_key(&key);
        let must_look_back = new_key && self.parked.overflowed();
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

    // ---- keys that are behind --------------------------------------------------------------------

    /// Puts a key behind, from `from` on.
    fn fall_behind(&mut self, key: &Arc<str>, from: i64, wait: Wait, now: u64) {
        let state = self
            .keys
            .entry(Arc::clone(key))
            .or_insert_with(|| KeyState::new(now));
        let (before, passed) = match &state.flow {
            Flow::Behind { wait, passed, .. } => (Some(*wait), *passed + 1),
            Flow::Forward => (None, 1),
        };
        state.flow = Flow::Behind { from, passed, wait };
        let order_key = OrderKey::Named(Arc::clone(key));
        self.rewait(&order_key, before, wait);
        self.wake_if_drained(&order_key);
    }

    /// Keeps the due times and the reading queue in step with a key's wait.
    fn rewait(&mut self, key: &OrderKey, before: Option<Wait>, after: Wait) {
        if let Some(Wait::Until(due)) = before {
            self.parked.remove(due, key);
        }
        match after {
            Wait::Until(due) => {
                if let Some(dropped) = self.parked.add(due, key.clone()) {
                    self.forget(&dropped);
                }
            }
            Wait::Ready => self.ready.push_back(key.clone()),
            Wait::Drain | Wait::Reading(_) => {}
        }
    }

    /// Forgets a parked key: from now on only the table knows it.
    fn forget(&mut self, key: &OrderKey) {
        match key {
            OrderKey::Alone(seq) => {
                self.alone.remove(seq);
            }
            OrderKey::Named(name) => {
                // With something still out the entry must stay; it is read again once that is settled.
                if let Some(state) = self.keys.get_mut(name) {
                    if state.held == 0 {
                        self.keys.remove(name);
                    } else if let Flow::Behind { wait, .. } = &mut state.flow {
                        *wait = Wait::Drain;
                    }
                }
            }
        }
    }

    fn state_mut(&mut self, key: &OrderKey) -> Option<&mut KeyState> {
        match key {
            OrderKey::Named(name) => self.keys.get_mut(name),
            OrderKey::Alone(seq) => self.alone.get_mut(seq),
        }
    }

    /// Moves a draining key to the reading queue once nothing stands against it.
    fn wake_if_drained(&mut self, key: &OrderKey) {
        let share = self.budget.key_share();
        let Some(state) = self.state_mut(key) else {
            return;
        };
        let may = match &state.flow {
            Flow::Behind {
                from,
                wait: Wait::Drain,
                ..
            } => state.may_read(*from, share),
            _ => false,
        };
        if may && let Flow::Behind { wait, .. } = &mut state.flow {
            *wait = Wait::Ready;
            self.ready.push_back(key.clone());
        }
    }

    /// Moves keys whose time has come to the reading queue.
    pub fn on_time(&mut self, now: u64) {
        while let Some(key) = self.parked.pop_due(now) {
            if let Some(state) = self.state_mut(&key)
                && let Flow::Behind { wait, .. } = &mut state.flow
            {
                *wait = Wait::Drain;
            }
            self.wake_if_drained(&key);
        }
    }

    /// The catch-up read to make now, if any: keys take turns.
    pub fn plan_catch_up(&mut self) -> Option<CatchUpPlan> {
        let allowance = self.budget.allowance(BATCH);
        if allowance == 0 || self.ready.is_empty() {
            return None;
        }
        let many = self.ready.len().min(KEYS_PER_READ).min(allowance);
        let mut plan = CatchUpPlan {
            per_key: (allowance / many).clamp(1, self.budget.key_share()),
            ..CatchUpPlan::default()
        };
        for _ in 0..many {
            let Some(key) = self.ready.pop_front() else {
                break;
            };
            let Some(state) = self.state_mut(&key) else {
                continue;
            };
            let Flow::Behind { from, passed, wait } = &mut state.flow else {
                continue;
            };
            if *wait != Wait::Ready {
                continue;
            }
            *wait = Wait::Reading(*passed);
            let from = *from;
            match key {
                OrderKey::Named(name) => plan.keys.push((name, from)),
                OrderKey::Alone(seq) => plan.alone.push(seq),
            }
        }
        (!plan.keys.is_empty() || !plan.alone.is_empty()).then_some(plan)
    }

    /// A catch-up read failed: its keys go back to the queue.
    pub fn catch_up_failed(&mut self, plan: &CatchUpPlan) {
        for key in plan_keys(plan) {
            if let Some(state) = self.state_mut(&key)
                && let Flow::Behind { wait, .. } = &mut state.flow
                && matches!(wait, Wait::Reading(_))
            {
                *wait = Wait::Drain;
            }
            self.wake_if_drained(&key);
        }
    }

    /// Takes in a catch-up read.
    pub fn on_catch_up(&mut self, plan: &CatchUpPlan, rows: Vec<Row>, now: u64) -> Vec<Action> {
        let mut out = Actions::default();
        let mut by_key: HashMap<Arc<str>, Vec<Row>> = HashMap::new();
        let mut singles: HashMap<i64, Row> = HashMap::new();
        for row in rows {
            match row.ordering_key.clone() {
                Some(key) => by_key.entry(key).or_default().push(row),
                None => {
                    singles.insert(row.seq, row);
                }
            }
        }
        for (key, _) in &plan.keys {
            let mut rows = by_key.remove(key).unwrap_or_default();
            rows.sort_unstable_by_key(|row| row.seq);
            self.catch_up_key(key, rows, plan.per_key, now, &mut out);
        }
        for seq in &plan.alone {
            self.catch_up_alone(*seq, singles.remove(seq), now, &mut out);
        }
        out.into()
    }

    fn catch_up_key(
        &mut self,
        key: &Arc<str>,
        rows: Vec<Row>,
        per_key: usize,
        now: u64,
        out: &mut Actions,
    ) {
        let Some(Flow::Behind {
            mut from,
            passed,
            wait: Wait::Reading(passed_then),
        }) = self.keys.get(key).map(|state| state.flow.clone())
        else {
            return;
        };
        let exhausted = rows.len() < per_key;
        let share = self.budget.key_share();
        let mut stop = None;
        for row in rows {
            let seq = row.seq;
            if let Some(route) = self.wanted(&row) {
                let full = self
                    .keys
                    .get(key)
                    .is_some_and(|state| state.held >= state.cap(share));
                if !row.due_in.is_zero() {
                    stop = Some(Wait::Until(due_at(now, &row)));
                } else if full || !self.budget.has_room() {
                    stop = Some(Wait::Drain);
                } else if row.body.is_none() {
                    self.fetching.insert(seq);
                    out.fetch(seq);
                    stop = Some(Wait::Reading(passed_then));
                } else {
                    self.hand_named(Arc::clone(key), row, route, false, out);
                }
            }
            if stop.is_some() {
                from = from.max(seq);
                break;
            }
            from = seq.saturating_add(1);
        }
        let caught_up = stop.is_none() && exhausted && passed == passed_then;
        let wait = stop.unwrap_or(Wait::Drain);
        let Some(state) = self.keys.get_mut(key) else {
            return;
        };
        let late = state.late.take();
        from = late.map_or(from, |late| from.min(late));
        if caught_up && late.is_none() {
            state.flow = Flow::Forward;
            self.bare.retain(|bare| bare != key);
            self.forget_idle(key);
            return;
        }
        state.flow = Flow::Behind { from, passed, wait };
        let order_key = OrderKey::Named(Arc::clone(key));
        self.rewait(&order_key, None, wait);
        self.wake_if_drained(&order_key);
    }

    fn catch_up_alone(&mut self, seq: i64, row: Option<Row>, now: u64, out: &mut Actions) {
        let strikes = self.alone.get(&seq).map_or(0, |state| state.strikes);
        let repeat = self.alone.get(&seq).and_then(|state| state.repeat);
        self.alone.remove(&seq);
        let Some(row) = row else { return };
        let Some(route) = self.wanted(&row) else {
            return;
        };
        self.take_alone(row, route, false, now, out);
        if let Some(state) = self.alone.get_mut(&seq) {
            state.strikes = strikes;
            state.repeat = repeat;
        } else if let Some(work) = out.last_alone(seq) {
            work.strikes = strikes;
            work.may_be_repeat |= repeat == Some(seq);
        }
    }

    // ---- rows found by their number --------------------------------------------------------------

    /// Which of these (seq, key) pairs are news, and so worth reading whole.
    pub fn unknown(&self, pairs: &[(i64, Option<Arc<str>>)]) -> Vec<i64> {
        pairs
            .iter()
            .filter(|(seq, key)| !self.is_known(*seq) && !self.will_be_read(*seq, key.as_ref()))
            .map(|(seq, _)| *seq)
            .collect()
    }

    /// Is the row going to be read by its key's own run?
    fn will_be_read(&self, seq: i64, key: Option<&Arc<str>>) -> bool {
        let state = match key {
            Some(key) => self.keys.get(key),
            None => self.alone.get(&seq),
        };
        matches!(state.map(|state| &state.flow),
            Some(Flow::Behind { from, wait, .. }) if *from <= seq && !matches!(wait, Wait::Reading(_)))
    }

    /// The heads of a sweep that nothing here explains.
    pub fn unexplained(&self, heads: &[Head]) -> Vec<i64> {
        heads
            .iter()
            .filter(|head| {
                let behind = match &head.ordering_key {
                    Some(key) => self.is_behind(key),
                    None => self.alone.contains_key(&head.seq),
                };
                head.seq <= self.cursor.at()
                    && !behind
                    && !self.is_known(head.seq)
                    && !self.cursor.gaps().contains(head.seq)
                    && !self.parked.overflowed()
                    && self.routes.to_sink(&head.kind, &self.sink).is_some()
            })
            .map(|head| head.seq)
            .collect()
    }

    /// Marks rows as being read by number.
    pub fn fetch(&mut self, seqs: &[i64]) {
        self.fetching.extend(seqs);
    }

    /// A read by number failed: large rows' keys go back to the queue, gaps and sweeps find the rest again.
    pub fn fetch_failed(&mut self, seqs: &[i64]) {
        for seq in seqs {
            self.fetching.remove(seq);
        }
        let stuck: Vec<OrderKey> = self
            .keys
            .iter()
            .filter(|(_, state)| {
                matches!(&state.flow, Flow::Behind { from, wait: Wait::Reading(_), .. } if seqs.contains(from))
            })
            .map(|(key, _)| OrderKey::Named(Arc::clone(key)))
            .collect();
        for key in stuck {
            if let Some(state) = self.state_mut(&key)
                && let Flow::Behind { wait, .. } = &mut state.flow
            {
                *wait = Wait::Drain;
            }
            self.wake_if_drained(&key);
        }
    }

    /// Takes in rows read by number (`asked`); those that are gone are missing from `rows`. Returns the actions and how many were
    /// real news.
    pub fn on_fetched(
        &mut self,
        asked: &[i64],
        rows: Vec<Row>,
        origin: Origin,
        now: u64,
    ) -> (Vec<Action>, u64) {
        let mut out = Actions::default();
        let mut news = 0;
        for seq in asked {
            self.fetching.remove(seq);
        }
        for row in rows {
            let seq = row.seq;
            if origin == Origin::Command {
                self.recent.remove(seq);
            }
            self.cursor.gaps_mut().fill(seq);
            let Some(route) = self.wanted(&row) else {
                continue;
            };
            news += 1;
            let reentered = origin == Origin::Command;
            match row.ordering_key.clone() {
                None => {
                    self.alone.remove(&seq);
                    self.take_alone(row, route, reentered, now, &mut out);
                }
                Some(key) => self.late_row(key, row, route, origin, now, &mut out),
            }
        }
        if origin == Origin::Large {
            self.fetch_failed(asked);
        }
        (out.into(), news)
    }

    fn late_row(
        &mut self,
        key: Arc<str>,
        row: Row,
        route: Arc<Route>,
        origin: Origin,
        now: u64,
        out: &mut Actions,
    ) {
        let seq = row.seq;
        let reentered = origin == Origin::Command;
        let flow = self.keys.get(&key).map(|state| state.flow.clone());
        match flow {
            None | Some(Flow::Forward) if row.due_in.is_zero() && row.body.is_some() => {
                self.hand_named(key, row, route, reentered, out);
            }
            None | Some(Flow::Forward) => {
                let until = due_at(now, &row);
                self.fall_behind(&key, seq, Wait::Until(until), now);
            }
            Some(Flow::Behind { from, wait, .. }) if origin == Origin::Large && seq == from => {
                self.hand_named(Arc::clone(&key), row, route, false, out);
                self.set_behind(&key, seq.saturating_add(1), wait, Wait::Drain);
            }
            Some(Flow::Behind {
                from,
                wait: wait @ Wait::Until(_),
                ..
            }) if seq < from => {
                // A new head: what the key waited for does not concern it.
                self.set_behind(&key, seq, wait, Wait::Drain);
            }
            Some(Flow::Behind { from, wait, .. }) if seq < from => {
                if row.due_in.is_zero() && row.body.is_some() {
                    self.hand_named(key, row, route, reentered, out);
                } else if let Some(state) = self.keys.get_mut(&key) {
                    state.lower_from(seq);
                    self.set_behind(&key, seq.min(from), wait, wait);
                }
            }
            Some(Flow::Behind { from, wait, .. }) => self.set_behind(&key, from, wait, wait),
        }
    }

    /// Moves a key that is behind, and lets a read under way know that something came meanwhile.
    fn set_behind(&mut self, key: &Arc<str>, from: i64, before: Wait, wait: Wait) {
        if let Some(state) = self.keys.get_mut(key)
            && let Flow::Behind {
                from: at,
                passed,
                wait: now,
            } = &mut state.flow
        {
            *at = from;
            *passed += 1;
            *now = wait;
        }
        let order_key = OrderKey::Named(Arc::clone(key));
        if before != wait {
            self.rewait(&order_key, Some(before), wait);
        }
        self.wake_if_drained(&order_key);
    }

    // ---- handing over and taking back --------------------------------------------------------------

    fn is_known(&self, seq: i64) -> bool {
        self.outstanding.contains_key(&seq)
            || self.recent.contains(seq)
            || self.fetching.contains(&seq)
    }

    fn wanted(&self, row: &Row) -> Option<Arc<Route>> {
        if row.done || self.is_known(row.seq) {
            return None;
        }
        self.routes.to_sink(&row.kind, &self.sink).cloned()
    }

    fn hand_named(
        &mut self,
        key: Arc<str>,
        row: Row,
        route: Arc<Route>,
        reentered: bool,
        out: &mut Actions,
    ) {
        let seq = row.seq;
        let hash = crate::lease::fnv1a64(key.as_bytes());
        let floor = self.high.get(&hash).copied().unwrap_or(i64::MIN);
        let Some(mut work) = self.work(row, route, reentered) else {
            return;
        };
        let state = self
            .keys
            .entry(Arc::clone(&key))
            .or_insert_with(|| KeyState::new(0));
        if state.held == 0 {
            work.strikes = state.strikes;
            work.may_be_repeat |= state.repeat == Some(seq);
        }
        state.handed(seq);
        self.outstanding
            .insert(seq, (Some(Arc::clone(&key)), work.event.weight()));
        self.budget.take(work.event.weight());
        if self.cursor.gaps().first().is_some_and(|gap| gap < seq) && self.high.len() < MAX_HIGH {
            let high = self.high.entry(hash).or_insert(seq);
            *high = (*high).max(seq);
        }
        out.hand(Some(key), work, floor);
    }

    fn take_alone(
        &mut self,
        row: Row,
        route: Arc<Route>,
        reentered: bool,
        now: u64,
        out: &mut Actions,
    ) {
        let seq = row.seq;
        let wait = if !row.due_in.is_zero() {
            Some(Wait::Until(due_at(now, &row)))
        } else if row.body.is_none() || !self.budget.has_room() {
            Some(Wait::Ready)
        } else {
            None
        };
        if let Some(wait) = wait {
            let mut state = KeyState::new(now);
            state.flow = Flow::Behind {
                from: seq,
                passed: 0,
                wait,
            };
            self.alone.insert(seq, state);
            self.rewait(&OrderKey::Alone(seq), None, wait);
            return;
        }
        if let Some(work) = self.work(row, route, reentered) {
            self.outstanding.insert(seq, (None, work.event.weight()));
            self.budget.take(work.event.weight());
            out.hand(None, work, i64::MIN);
        }
    }

    fn work(&self, row: Row, route: Arc<Route>, reentered: bool) -> Option<Work> {
        let attempts = row.attempts;
        let event = row.into_event()?;
        let may_be_repeat = event.seq <= self.repeat_below || attempts > 0;
        Some(Work {
            event: Arc::new(event),
            route,
            attempts,
            strikes: 0,
            may_be_repeat,
            reentered,
        })
    }

    /// An outcome was committed; `done` when the row will not come back for this sink.
    pub fn on_settled(&mut self, seq: i64, done: bool, now: u64) {
        let Some((key, weight)) = self.outstanding.remove(&seq) else {
            return;
        };
        self.budget.give(weight);
        if done {
            self.recent.add(seq);
        }
        let Some(key) = key else {
            if let Some(state) = self.alone.get_mut(&seq) {
                state.let_go(now);
            }
            self.wake_if_drained(&OrderKey::Alone(seq));
            return;
        };
        if let Some(state) = self.keys.get_mut(&key) {
            state.settled(now);
            if done {
                state.strikes = 0;
                state.repeat = None;
            }
        }
        self.wake_if_drained(&OrderKey::Named(key));
    }

    /// Events came back unsent.
    pub fn on_returned(&mut self, seqs: &[i64], now: u64) {
        for seq in seqs {
            let Some((key, weight)) = self.outstanding.remove(seq) else {
                continue;
            };
            self.budget.give(weight);
            let Some(key) = key else { continue };
            if let Some(state) = self.keys.get_mut(&key) {
                state.let_go(now);
                state.lower_from(*seq);
            }
            self.wake_if_drained(&OrderKey::Named(key));
        }
    }

    /// A sequencer parked its key.
    pub fn on_park(&mut self, park: Park, now: u64) {
        let until = now.saturating_add(park.pause);
        for seq in &park.returned {
            if let Some((_, weight)) = self.outstanding.remove(seq) {
                self.budget.give(weight);
                if let Some(name) = park.key.name()
                    && let Some(state) = self.keys.get_mut(name)
                {
                    state.let_go(now);
                }
            }
        }
        match &park.key {
            OrderKey::Named(name) => {
                let name = Arc::clone(name);
                let state = self
                    .keys
                    .entry(Arc::clone(&name))
                    .or_insert_with(|| KeyState::new(now));
                state.strikes = park.strikes;
                state.repeat = park.repeat.then_some(park.head);
                let from = match &state.flow {
                    Flow::Behind { from, .. } => park.head.min(*from),
                    Flow::Forward => park.head,
                };
                self.fall_behind(&name, from, Wait::Until(until), now);
                let hash = crate::lease::fnv1a64(name.as_bytes());
                if let Some(high) = self.high.get_mut(&hash) {
                    *high = (*high).min(park.head.saturating_sub(1));
                }
            }
            OrderKey::Alone(seq) => {
                let mut state = KeyState::new(now);
                state.strikes = park.strikes;
                state.repeat = park.repeat.then_some(park.head);
                if park.settling {
                    state.handed(*seq);
                }
                let wait = Wait::Until(until);
                state.flow = Flow::Behind {
                    from: *seq,
                    passed: 0,
                    wait,
                };
                self.alone.insert(*seq, state);
                self.rewait(&park.key, None, wait);
            }
        }
    }

    /// A sequencer died without a word: nothing of its key may pass what it had, until that is read again.
    pub fn on_sequencer_lost(&mut self, key: &Arc<str>, now: u64) {
        let lowest = self
            .outstanding
            .iter()
            .filter(|(_, (owner, _))| owner.as_ref() == Some(key))
            .map(|(seq, _)| *seq)
            .min();
        let from = match self.keys.get(key).map(|state| &state.flow) {
            Some(Flow::Behind { from, .. }) => lowest.map_or(*from, |lowest| lowest.min(*from)),
            _ => match lowest {
                Some(lowest) => lowest,
                None => return,
            },
        };
        self.fall_behind(key, from, Wait::Drain, now);
    }

    /// A sequencer died without a word, and everything it had reported is settled: what is still out of its key
    /// is read again, from the table.
    pub fn on_orphaned(&mut self, key: Option<&Arc<str>>, pause: u64, now: u64) {
        let lost: Vec<i64> = self
            .outstanding
            .iter()
            .filter(|(_, (owner, _))| owner.as_ref() == key)
            .map(|(seq, _)| *seq)
            .collect();
        for seq in &lost {
            if let Some((_, weight)) = self.outstanding.remove(seq) {
                self.budget.give(weight);
            }
            if key.is_none() {
                self.on_park(
                    Park {
                        key: OrderKey::Alone(*seq),
                        head: *seq,
                        pause,
                        settling: false,
                        strikes: 0,
                        repeat: true,
                        returned: Vec::new(),
                    },
                    now,
                );
            }
        }
        let Some(key) = key else { return };
        let Some(state) = self.keys.get_mut(key) else {
            return;
        };
        state.held = 0;
        state.held_max = i64::MIN;
        if let Some(lowest) = lost.iter().min() {
            state.repeat = Some(*lowest);
            let from = match &state.flow {
                Flow::Behind { from, .. } => (*from).min(*lowest),
                Flow::Forward => *lowest,
            };
            self.fall_behind(key, from, Wait::Until(now.saturating_add(pause)), now);
        }
    }

    /// Named keys with nothing out, nothing waiting, and no work for `linger` milliseconds: their sequencers
    /// may end. They are forgotten here.
    pub fn retire_idle(&mut self, linger: u64, now: u64) -> Vec<Arc<str>> {
        let idle: Vec<Arc<str>> = self
            .keys
            .iter()
            .filter(|(_, state)| {
                state.held == 0
                    && state.flow == Flow::Forward
                    && now.saturating_sub(state.idle_since) >= linger
            })
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in &idle {
            self.keys.remove(key);
        }
        idle
    }

    fn forget_idle(&mut self, key: &Arc<str>) {
        if let Some(state) = self.keys.get_mut(key) {
            state.strikes = 0;
        }
    }

    /// Forgets sent seqs below which no gap is open: nothing can come late behind them.
    fn prune_high(&mut self) {
        match self.cursor.gaps().first() {
            None => self.high.clear(),
            Some(gap) if self.high.len() >= MAX_HIGH / 2 => self.high.retain(|_, high| *high > gap),
            Some(_) => {}
        }
    }

    /// Rows found again through the index on due times, after keys had to be dropped.
    pub fn on_due_rows(&mut self, due: &[(OrderKey, i64, u64)], now: u64) {
        for (key, seq, pause) in due {
            if self.is_known(*seq) {
                continue;
            }
            let wait = Wait::Until(now.saturating_add(*pause));
            match key {
                OrderKey::Named(name) if !self.keys.contains_key(name) => {
                    // Earlier rows of the key may exist; its own run is read from the start.
                    self.fall_behind(&Arc::clone(name), i64::MIN, wait, now);
                }
                OrderKey::Alone(seq) if !self.alone.contains_key(seq) => {
                    let mut state = KeyState::new(now);
                    state.flow = Flow::Behind {
                        from: *seq,
                        passed: 0,
                        wait,
                    };
                    self.alone.insert(*seq, state);
                    self.rewait(key, None, wait);
                }
                OrderKey::Named(_) | OrderKey::Alone(_) => {}
            }
        }
    }

    /// Everything handed over and not settled.
    pub fn outstanding(&self) -> impl Iterator<Item = i64> {
        self.outstanding.keys().copied()
    }

    /// The database refuses this event's outcome: it waits for `pause` milliseconds and is tried again.
    pub fn on_refused(&mut self, seq: i64, pause: u64, now: u64) {
        let Some(key) = self.outstanding.get(&seq).map(|(key, _)| key.clone()) else {
            return;
        };
        self.on_settled(seq, false, now);
        self.on_park(
            Park {
                key: OrderKey::of(key.as_ref(), seq),
                head: seq,
                pause,
                settling: false,
                strikes: 0,
                repeat: true,
                returned: Vec::new(),
            },
            now,
        );
    }

    /// The due times, to take in a refill.
    pub fn parked_mut(&mut self) -> &mut Parked {
        &mut self.parked
    }
}

fn plan_keys(plan: &CatchUpPlan) -> Vec<OrderKey> {
    let named = plan
        .keys
        .iter()
        .map(|(key, _)| OrderKey::Named(Arc::clone(key)));
    named
        .chain(plan.alone.iter().map(|seq| OrderKey::Alone(*seq)))
        .collect()
}

fn due_at(now: u64, row: &Row) -> u64 {
    // One more, so that a row is never read again a fraction of a millisecond early.
    now.saturating_add(u64::try_from(row.due_in.as_millis()).unwrap_or(u64::MAX))
        .saturating_add(1)
}

/// Collects actions, events of one key together.
#[derive(Default)]
struct Actions {
    list: Vec<Action>,
    by_key: HashMap<Option<Arc<str>>, usize>,
    fetch: Vec<i64>,
}

impl Actions {
    fn hand(&mut self, key: Option<Arc<str>>, work: Work, floor: i64) {
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

    fn fetch(&mut self, seq: i64) {
        self.fetch.push(seq);
    }

    fn last_alone(&mut self, seq: i64) -> Option<&mut Work> {
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
