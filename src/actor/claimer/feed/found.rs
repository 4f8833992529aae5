//! Rows found by their number: in gaps, by a sweep, by an operator's word, or too large for a batch.

use std::sync::Arc;

use super::action::{Action, Actions, Origin};
use super::{Feed, due_at};
use crate::actor::claimer::keys::{Flow, OrderKey, Wait};
use crate::route::Route;
use crate::source::{Head, Row};

/// Pauses that only memory knows are shorter than this, milliseconds.
const ONLY_IN_MEMORY: u64 = 30_000;

impl Feed {
    /// Heads of a sweep that may go now though their keys wait for a much later time: somebody has changed the
    /// row. Their keys are read again.
    pub fn on_rescheduled(&mut self, heads: &[Head], now: u64) {
        for head in heads.iter().filter(|head| head.due) {
            let key = OrderKey::of(head.ordering_key.as_ref(), head.seq);
            let Some(state) = self.state_mut(&key) else {
                continue;
            };
            let Flow::Behind { wait, .. } = &mut state.flow else {
                continue;
            };
            let far = matches!(wait, Wait::Until(until) if *until > now + ONLY_IN_MEMORY);
            if !far {
                continue;
            }
            let before = std::mem::replace(wait, Wait::Drain);
            self.rewait(&key, Some(before), Wait::Drain);
            self.wake_if_drained(&key);
        }
    }

    /// Rows turned up in gaps, as (seq, key). From now on nothing of their keys passes them: a key that has
    /// fallen behind reads them with its own run, any other waits until they are read by number. Gives the
    /// seqs to read so; they count as being read.
    pub fn on_late(&mut self, pairs: &[(i64, Option<Arc<str>>)], now: u64) -> Vec<i64> {
        let mut news = Vec::new();
        for (seq, key) in pairs {
            self.cursor.fill(*seq);
            if self.is_known(*seq) || !self.owns(key.as_ref(), *seq) {
                continue;
            }
            let Some(key) = key else {
                if !self.alone.contains_key(seq) {
                    news.push(*seq);
                }
                continue;
            };
            match self.keys.get(key).map(|state| state.flow.clone()) {
                Some(Flow::Behind {
                    wait: Wait::Reading(_),
                    ..
                }) => {
                    // The read under way may have missed it, or have begun above it.
                    if let Some(state) = self.keys.get_mut(key) {
                        state.lower_from(*seq);
                    }
                }
                Some(Flow::Behind { from, wait, .. }) if *seq < from => {
                    // A new head: what the key waited for does not concern it.
                    self.set_behind(key, *seq, wait, Wait::Drain);
                }
                Some(Flow::Behind { .. }) => {}
                None if self.has_more_in_table() => {
                    self.fall_behind(key, i64::MIN, Wait::Drain, now);
                }
                None | Some(Flow::Forward) => {
                    self.fall_behind(key, *seq, Wait::Reading(1), now);
                    news.push(*seq);
                }
            }
        }
        self.fetching.extend(&news);
        news
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
                    && !self.has_more_in_table()
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
    pub fn fetch_failed(&mut self, seqs: &[i64], origin: Origin) {
        if !origin.hands_over() {
            return;
        }
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
        if origin.hands_over() {
            for seq in asked {
                self.fetching.remove(seq);
            }
        }
        for row in rows {
            let seq = row.seq;
            if origin == Origin::Command {
                self.recent.remove(seq);
                if self.outstanding.contains_key(&seq) {
                    self.again.insert(seq, origin);
                }
            }
            if origin == Origin::Hurry {
                self.hurry(row, now, &mut out);
                continue;
            }
            self.cursor.fill(seq);
            let Some(route) = self.wanted(&row) else {
                continue;
            };
            news += 1;
            let reentered = origin == Origin::Command;
            match row.ordering_key.clone() {
                None => {
                    self.alone.remove(&seq);
                    self.held_back.remove(&OrderKey::Alone(seq));
                    self.take_alone(row, route, reentered, now, &mut out);
                }
                Some(key) => self.late_row(key, row, route, origin, now, &mut out),
            }
        }
        // Rows that are gone: their keys wait for them no longer.
        self.fetch_failed(asked, origin);
        (out.into(), news)
    }

    /// Of the rows that a command names, those to read now; what reading forward has not come to waits for it, since
    /// what stands before it in its key is not read yet either.
    pub fn within_reach(&mut self, mut seqs: Vec<i64>, origin: Origin) -> Vec<i64> {
        if matches!(origin, Origin::Command | Origin::Hurry) {
            let at = self.cursor.at();
            let beyond = seqs.iter().filter(|seq| **seq > at);
            self.expected.extend(beyond.map(|seq| (*seq, origin)));
            seqs.retain(|seq| *seq <= at);
        }
        seqs
    }

    /// Rows that commands named before reading forward had come to them, and that it has passed now.
    pub fn take_expected(&mut self) -> Vec<(Vec<i64>, Origin)> {
        if self.expected.is_empty() {
            return Vec::new();
        }
        let at = self.cursor.at();
        let mut passed: Vec<(Vec<i64>, Origin)> = Vec::new();
        for (seq, origin) in self.expected.extract_if(|seq, _| *seq <= at) {
            match passed.iter_mut().find(|(_, of)| *of == origin) {
                Some((seqs, _)) => seqs.push(seq),
                None => passed.push((vec![seq], origin)),
            }
        }
        for (seqs, _) in &mut passed {
            seqs.sort_unstable();
        }
        passed
    }

    /// A row need no longer wait, by an operator's word: its key is read again, if it waits for a time. Nothing is
    /// handed over from here, since an answer may have overtaken this read.
    fn hurry(&mut self, row: Row, now: u64, out: &mut Actions) {
        let seq = row.seq;
        if self.outstanding.contains_key(&seq) {
            self.again.entry(seq).or_insert(Origin::Hurry);
        }
        if !row.due_in.is_zero() {
            return;
        }
        let Some(route) = self.wanted(&row) else {
            return;
        };
        let waits = |flow: &Flow| {
            matches!(
                flow,
                Flow::Behind {
                    wait: Wait::Until(_) | Wait::Paused,
                    ..
                }
            )
        };
        let Some(key) = row.ordering_key.clone() else {
            let parked = self.alone.get(&seq).is_some_and(|state| waits(&state.flow));
            if parked || (self.has_more_in_table() && !self.alone.contains_key(&seq)) {
                self.alone.remove(&seq);
                self.held_back.remove(&OrderKey::Alone(seq));
                self.take_alone(row, route, false, now, out);
            }
            return;
        };
        match self.keys.get(&key).map(|state| state.flow.clone()) {
            None if self.has_more_in_table() => {
                self.fall_behind(&key, i64::MIN, Wait::Drain, now);
            }
            Some(flow @ Flow::Behind { from, wait, .. }) if waits(&flow) => {
                self.set_behind(&key, seq.min(from), wait, Wait::Drain);
            }
            _ => {}
        }
    }

    pub(super) fn late_row(
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
        let must_wait = self.must_wait(&row, &route);
        let halted = self.keys.get(&key).is_some_and(|state| state.halted);
        match flow {
            None if self.has_more_in_table() => {
                // The table may hold an earlier row of it.
                self.fall_behind(&key, i64::MIN, Wait::Drain, now);
            }
            None | Some(Flow::Forward) if must_wait => {
                self.fall_behind(&key, seq, Wait::Paused, now);
            }
            None | Some(Flow::Forward) if row.due_in.is_zero() && row.body.is_some() => {
                self.hand_named(key, row, route, reentered, out);
            }
            None | Some(Flow::Forward) => {
                let until = due_at(now, &row);
                self.fall_behind(&key, seq, Wait::Until(until), now);
            }
            Some(Flow::Behind { from, wait, .. })
                if seq == from && matches!(wait, Wait::Reading(_)) =>
            {
                let late = self.keys.get_mut(&key).and_then(|state| state.late.take());
                if let Some(late) = late.filter(|late| *late < seq) {
                    return self.set_behind(&key, late, wait, Wait::Drain);
                }
                if must_wait {
                    return self.set_behind(&key, from, wait, Wait::Paused);
                }
                if halted {
                    return self.set_behind(&key, from, wait, Wait::Drain);
                }
                if !row.due_in.is_zero() {
                    let until = Wait::Until(due_at(now, &row));
                    return self.set_behind(&key, from, wait, until);
                }
                self.hand_named(Arc::clone(&key), row, route, reentered, out);
                self.set_behind(&key, seq.saturating_add(1), wait, Wait::Drain);
            }
            Some(Flow::Behind {
                from,
                wait: wait @ (Wait::Until(_) | Wait::Paused),
                ..
            }) if seq < from => {
                // A new head: what the key waited for does not concern it.
                self.set_behind(&key, seq, wait, Wait::Drain);
            }
            Some(Flow::Behind { from, wait, .. }) if seq < from => {
                let may_go = !must_wait && !halted && row.due_in.is_zero();
                if may_go && row.body.is_some() {
                    self.hand_named(key, row, route, reentered, out);
                } else if let Some(state) = self.keys.get_mut(&key) {
                    state.lower_from(seq);
                    self.set_behind(&key, seq.min(from), wait, wait);
                }
            }
            Some(Flow::Behind { from, wait, .. }) => {
                // A read under way may have begun before the row came back, and go past it.
                if let Some(state) = self.keys.get_mut(&key) {
                    state.lower_from(seq);
                }
                self.set_behind(&key, from, wait, wait);
            }
        }
    }

    /// Moves a key that is behind, and lets a read under way know that something came meanwhile.
    pub(super) fn set_behind(&mut self, key: &Arc<str>, from: i64, before: Wait, wait: Wait) {
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
}
