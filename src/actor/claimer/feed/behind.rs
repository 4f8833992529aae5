//! Keys that are behind: waiting for a time or for their sequencer, then read by their own run until they
//! have caught up.

use std::collections::HashMap;
use std::sync::Arc;

use super::action::{Action, Actions, CatchUpPlan};
use super::{BATCH, Feed, due_at};
use crate::actor::claimer::keys::{Flow, KeyState, OrderKey, Strikes, Wait};
use crate::source::Row;

/// Most keys of one catch-up read.
const KEYS_PER_READ: usize = 64;

impl Feed {
    /// Puts a key behind, from `from` on.
    pub(super) fn fall_behind(&mut self, key: &Arc<str>, from: i64, wait: Wait, now: u64) {
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
    pub(super) fn rewait(&mut self, key: &OrderKey, before: Option<Wait>, after: Wait) {
        match before {
            Some(Wait::Until(due)) => self.parked.remove(due, key),
            Some(Wait::Paused) => {
                self.held_back.remove(key);
            }
            _ => {}
        }
        match after {
            Wait::Until(due) => {
                if let Some(dropped) = self.parked.add(due, key.clone()) {
                    self.forget(&dropped);
                    // It may wait in memory only; what waits in the table is found by its due time.
                    self.note_forgotten();
                }
            }
            Wait::Paused => self.hold_back(key),
            Wait::Ready => self.ready.push_back(key.clone()),
            Wait::Drain | Wait::Reading(_) => {}
        }
    }

    /// Forgets a parked key: from now on only the table knows it.
    pub(super) fn forget(&mut self, key: &OrderKey) {
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

    pub(super) fn state_mut(&mut self, key: &OrderKey) -> Option<&mut KeyState> {
        match key {
            OrderKey::Named(name) => self.keys.get_mut(name),
            OrderKey::Alone(seq) => self.alone.get_mut(seq),
        }
    }

    /// Moves a draining key to the reading queue once nothing stands against it.
    pub(super) fn wake_if_drained(&mut self, key: &OrderKey) {
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
        if self.ready.is_empty() {
            return None;
        }
        // Half for keys that are behind, half for the forward read: neither starves the other.
        let allowance = self.budget.allowance(BATCH).div_ceil(2);
        if allowance == 0 {
            return None;
        }
        let many = self.ready.len().min(KEYS_PER_READ).min(allowance);
        let mut plan = CatchUpPlan {
            per_key: (allowance / many).clamp(1, self.budget.key_share()),
            up_to: self.cursor.at(),
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
        plan.reserved = plan.keys.len() * plan.per_key + plan.alone.len();
        self.budget.reserve(plan.reserved);
        (plan.reserved > 0).then_some(plan)
    }

    /// A catch-up read failed: its keys go back to the queue.
    pub fn catch_up_failed(&mut self, plan: &CatchUpPlan) {
        self.budget.release(plan.reserved);
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
        self.budget.release(plan.reserved);
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
            self.catch_up_key(key, rows, plan, now, &mut out);
        }
        for seq in &plan.alone {
            self.catch_up_alone(*seq, singles.remove(seq), now, &mut out);
        }
        out.into()
    }

    pub(super) fn catch_up_key(
        &mut self,
        key: &Arc<str>,
        rows: Vec<Row>,
        plan: &CatchUpPlan,
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
        // Rows above the cursor of that time are left to it: it knows what is missing below them.
        let count = rows.len();
        let rows: Vec<Row> = rows
            .into_iter()
            .take_while(|row| row.seq <= plan.up_to)
            .collect();
        let exhausted = count < plan.per_key || rows.len() < count;
        let late = self.keys.get_mut(key).and_then(|state| state.late.take());
        let share = self.budget.key_share();
        let mut stop = None;
        for row in rows {
            let seq = row.seq;
            if late.is_some_and(|late| late <= seq) {
                // A row that this read may not have seen comes first.
                break;
            }
            if self.fetching.contains(&seq) {
                // It is being read by number: what follows waits for it.
                stop = Some(Wait::Reading(passed_then));
            } else if let Some(route) = self.wanted(&row) {
                let full = self
                    .keys
                    .get(key)
                    .is_some_and(|state| state.halted || state.held >= state.cap(share));
                if self.must_wait(&row, &route) {
                    stop = Some(Wait::Paused);
                } else if !row.due_in.is_zero() {
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
        let wait = match late {
            Some(late) if late <= from => {
                from = late;
                Wait::Drain
            }
            // The next read begins below it and sees it.
            _ => wait,
        };
        if caught_up && late.is_none() {
            state.flow = Flow::Forward;
            state.strikes = Strikes::default();
            self.bare.retain(|bare| bare != key);
            return;
        }
        state.flow = Flow::Behind { from, passed, wait };
        let order_key = OrderKey::Named(Arc::clone(key));
        self.rewait(&order_key, None, wait);
        self.wake_if_drained(&order_key);
    }

    pub(super) fn catch_up_alone(
        &mut self,
        seq: i64,
        row: Option<Row>,
        now: u64,
        out: &mut Actions,
    ) {
        let strikes = self
            .alone
            .get(&seq)
            .map_or(Strikes::default(), |state| state.strikes);
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
