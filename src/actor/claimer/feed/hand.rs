//! Handing events over, and the budget and order that go with it.

use std::sync::Arc;

use super::action::{Actions, Aside, Work};
use super::{Feed, MAX_HIGH, due_at};
use crate::actor::claimer::keys::{KeyState, Strikes, Wait};
use crate::route::Route;
use crate::source::{DiscardReason, Row};

/// What is said of an event that is set aside as `crashed`.
const CRASHED: &str = "three times whoever handled this event ended unexpectedly, the third time with nothing else in hand";

impl Feed {
    pub(super) fn is_known(&self, seq: i64) -> bool {
        self.outstanding.contains_key(&seq)
            || self.recent.contains(seq)
            || self.fetching.contains(&seq)
    }

    pub(super) fn wanted(&self, row: &Row) -> Option<Arc<Route>> {
        let owned = self.owns(row.ordering_key.as_ref(), row.seq);
        if row.done || !owned || self.is_known(row.seq) {
            return None;
        }
        self.routes.to_sink(&row.kind, &self.sink).cloned()
    }

    pub(super) fn hand_named(
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
        if state.certain {
            work.may_be_repeat = work.attempts > 0;
        }
        work.may_be_repeat |= state.repeat.is_some_and(|last| seq <= last);
        if state.held == 0 {
            work.strikes = state.strikes;
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

    pub(super) fn take_alone(
        &mut self,
        row: Row,
        route: Arc<Route>,
        reentered: bool,
        now: u64,
        out: &mut Actions,
    ) {
        let seq = row.seq;
        let wait = if self.must_wait(&row, &route) {
            Some(Wait::Paused)
        } else if !row.due_in.is_zero() {
            Some(Wait::Until(due_at(now, &row)))
        } else if row.body.is_none() || !self.budget.has_room() {
            Some(Wait::Ready)
        } else {
            None
        };
        if let Some(wait) = wait {
            self.park_alone(seq, KeyState::new(now), wait);
            return;
        }
        if let Some(work) = self.work(row, route, reentered) {
            self.outstanding.insert(seq, (None, work.event.weight()));
            self.budget.take(work.event.weight());
            out.hand(None, work, i64::MIN);
        }
    }

    /// Is it not to be sent? By an operator's word, or because it kills.
    fn aside(&self, row: &Row) -> Option<Aside> {
        let operator = row.skip.as_deref().map(|words| Aside {
            reason: DiscardReason::Operator,
            words: Arc::from(words),
        });
        let crashed = || Aside {
            reason: DiscardReason::Crashed,
            words: Arc::from(CRASHED),
        };
        operator.or_else(|| self.condemned.contains(&row.seq).then(crashed))
    }

    pub(super) fn work(&self, row: Row, route: Arc<Route>, reentered: bool) -> Option<Work> {
        let attempts = row.attempts;
        let skip = self.aside(&row);
        let event = row.into_event()?;
        let may_be_repeat = event.seq <= self.repeat_below || attempts > 0;
        Some(Work {
            event: Arc::new(event),
            route,
            attempts,
            strikes: Strikes::default(),
            may_be_repeat,
            reentered,
            skip,
        })
    }
}
