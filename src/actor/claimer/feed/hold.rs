//! What a feed does about pauses: keys that have to wait at their head, and what has to come back for it.

use std::sync::Arc;

use super::Feed;
use crate::actor::claimer::holds::Holds;
use crate::actor::claimer::keys::{Flow, KeyState, OrderKey, Wait};
use crate::route::Route;
use crate::source::{Head, Row};

/// Whose sequencers have to give back what is not out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recall {
    /// Of these keys. Nothing is handed over to them before all of it is back or settled.
    pub keys: Vec<Arc<str>>,
    /// Of the events without a key.
    pub alone: bool,
}

impl Feed {
    /// Nothing of this feed may move: it is neither read nor sent.
    pub fn is_held(&self) -> bool {
        self.holds.all()
    }

    /// Keys and events that wait for an operator's word to go on.
    pub fn held_back(&self) -> usize {
        self.held_back.len()
    }

    /// Takes in what is held back from now on. What is released is read again.
    pub fn hold(&mut self, holds: Holds, now: u64) -> Recall {
        let before = std::mem::replace(&mut self.holds, holds);
        let widened = self.holds.widen(&before);
        let keys: Vec<Arc<str>> = self
            .keys
            .iter()
            .filter(|(key, state)| {
                state.held > 0 && !state.halted && (widened || self.holds.add(&before, key))
            })
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in &keys {
            self.halt(key, now);
        }
        if widened {
            let alone = self
                .outstanding
                .iter()
                .filter(|(_, (key, _))| key.is_none());
            self.recalled.extend(alone.map(|(seq, _)| *seq));
        }
        let alone = widened && !self.recalled.is_empty();
        if self.holds.release(&before) {
            self.release();
        }
        Recall { keys, alone }
    }

    /// The key's sequencer is told to send nothing more: nothing goes to it before all of it is back.
    fn halt(&mut self, key: &Arc<str>, now: u64) {
        let Some(state) = self.keys.get_mut(key) else {
            return;
        };
        state.halted = true;
        if state.flow == Flow::Forward {
            let from = state.held_max.saturating_add(1);
            self.fall_behind(key, from, Wait::Drain, now);
        }
    }

    /// Keys of which everything came back or was settled since they were halted: their sequencers may end.
    pub fn take_drained(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.drained)
    }

    /// Notes that nothing of a halted key is out any more.
    pub(super) fn note_drained(&mut self, key: &Arc<str>) {
        if let Some(state) = self.keys.get_mut(key)
            && state.halted
            && state.held == 0
        {
            state.halted = false;
            self.drained.push(Arc::clone(key));
        }
    }

    /// The key's sequencer is gone or about to end: a new one begins without a halt.
    pub fn unhalted(&mut self, key: &Arc<str>) {
        if let Some(state) = self.keys.get_mut(key) {
            state.halted = false;
        }
    }

    /// Does this row have to wait? Not if it is to be set aside: nothing is sent then.
    pub(super) fn must_wait(&self, row: &Row, route: &Route) -> bool {
        row.skip.is_none() && self.holds.hold(row.ordering_key.as_deref(), &route.name)
    }

    /// Remembers a key that waits for an operator; beyond the bound only the table knows it.
    pub(super) fn hold_back(&mut self, key: &OrderKey) {
        if self.held_back.len() < self.max_held_back {
            self.held_back.insert(key.clone());
            return;
        }
        self.forget(key);
        self.note_forgotten();
    }

    pub(super) fn note_forgotten(&mut self) {
        self.forgotten = true;
        self.forgettings += 1;
    }

    /// Everything that waits for an operator is looked at again.
    fn release(&mut self) {
        // A search that is under way has passed over what was held back then.
        self.forgettings += 1;
        self.search |= self.forgotten;
        let held: Vec<OrderKey> = self.held_back.drain().collect();
        for key in held {
            if let Some(state) = self.state_mut(&key)
                && let Flow::Behind { wait, .. } = &mut state.flow
                && *wait == Wait::Paused
            {
                *wait = Wait::Drain;
            }
            self.wake_if_drained(&key);
        }
    }

    /// Keys that waited may be in the table only.
    pub fn has_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Such keys may go on: the table has to be searched for them at once, not with the next sweep.
    pub fn wants_search(&self) -> bool {
        self.search
    }

    /// A search begins; give the number back to [`Feed::searched`].
    pub fn search_began(&mut self) -> u64 {
        self.search = false;
        self.left_held = false;
        self.forgettings
    }

    /// Keys to read are few enough for a search to go on; a sweep that only compares need not wait.
    pub fn has_room_to_search(&self) -> bool {
        !self.forgotten || self.ready.len() < super::BATCH
    }

    /// Takes in heads of keys that a search found: those that memory does not know are read from their start.
    pub fn on_searched(&mut self, heads: &[Head], now: u64) {
        for head in heads {
            // What is not due is found by its time, unless memory has room for all of those.
            let elsewhere = !head.due && self.parked.overflowed();
            // Of a key whose head is being read by number, what stands behind it is still to be found.
            let in_hand = match &head.ordering_key {
                Some(_) => self.is_known(head.seq) && !self.fetching.contains(&head.seq),
                None => self.is_known(head.seq),
            };
            if head.seq > self.cursor.at() || in_hand || elsewhere {
                continue;
            }
            let known = match &head.ordering_key {
                Some(key) => self.keys.contains_key(key),
                None => self.alone.contains_key(&head.seq),
            };
            if known {
                continue;
            }
            let route = self.routes.to_sink(&head.kind, &self.sink);
            let held = route
                .is_some_and(|route| self.holds.hold(head.ordering_key.as_deref(), &route.name));
            if held {
                self.left_held = true;
                continue;
            }
            match &head.ordering_key {
                Some(key) => self.fall_behind(key, i64::MIN, Wait::Drain, now),
                None if route.is_some() => {
                    self.park_alone(head.seq, KeyState::new(now), Wait::Ready);
                }
                None => {}
            }
        }
    }

    /// A search came to its end. When nothing was forgotten since it began, memory knows every key again.
    pub fn searched(&mut self, forgettings_then: u64) {
        if self.forgettings == forgettings_then && !self.left_held {
            self.forgotten = false;
        }
    }
}
