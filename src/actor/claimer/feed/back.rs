//! What comes back from sequencers and the settler: settled, returned, parked, lost.

use std::sync::Arc;

use super::action::{Origin, Park};
use super::{Feed, MAX_HIGH};
use crate::actor::claimer::keys::{Flow, KeyState, OrderKey, Strikes, Wait};
use crate::actor::claimer::parked::Parked;

/// Pause of an event that came back although its key was not parked, milliseconds.
const RETURNED: u64 = 250;
/// An event with which so many sequencers died is set aside.
const FALLS: u32 = 3;
/// Events without a key that were lost together come again in groups of so many, so many milliseconds apart.
const APART: u64 = 32;
const SPREAD: u64 = 20;

impl Feed {
    /// An outcome was committed; `done` when the row will not come back for this sink, `new` when the sink had to
    /// store it.
    pub fn on_settled(&mut self, seq: i64, done: bool, new: bool, now: u64) {
        let Some((key, weight)) = self.outstanding.remove(&seq) else {
            return;
        };
        self.budget.give(weight);
        if done {
            self.recent.add(seq);
            self.falls.remove(&seq);
            self.condemned.remove(&seq);
        }
        let Some(key) = key else {
            self.recalled.remove(&seq);
            if let Some(state) = self.alone.get_mut(&seq) {
                state.let_go(now);
            }
            self.wake_if_drained(&OrderKey::Alone(seq));
            return;
        };
        if let Some(state) = self.keys.get_mut(&key) {
            state.settled(now);
            state.certain |= new;
            if done {
                state.strikes = Strikes::default();
                state.repeat.take_if(|last| *last <= seq);
                state.careful_to.take_if(|last| *last <= seq);
            }
        }
        self.note_drained(&key);
        self.wake_if_drained(&OrderKey::Named(key));
    }

    /// Was the row put back by an operator before its outcome was known here? Then it has to be read by number.
    pub fn take_again(&mut self, seq: i64) -> Option<Origin> {
        self.again.remove(&seq)
    }

    /// Events came back unsent.
    pub fn on_returned(&mut self, seqs: &[i64], now: u64) {
        for seq in seqs {
            let Some((key, weight)) = self.outstanding.remove(seq) else {
                continue;
            };
            self.budget.give(weight);
            let Some(key) = key else {
                match self.recalled.remove(seq) {
                    true => self.park_alone(*seq, KeyState::new(now), Wait::Ready),
                    false => self.wait_alone(*seq, RETURNED, now),
                }
                continue;
            };
            if let Some(state) = self.keys.get_mut(&key) {
                state.let_go(now);
                state.lower_from(*seq);
                if state.flow == Flow::Forward {
                    let until = Wait::Until(now.saturating_add(RETURNED));
                    self.fall_behind(&key, *seq, until, now);
                }
            }
            self.note_drained(&key);
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
                state.repeat = state.repeat.max(park.repeat);
                // One that re-entered its key may come back from before the head.
                let lowest = park.returned.iter().copied().min();
                let lowest = lowest.map_or(park.head, |lowest| lowest.min(park.head));
                let from = match &state.flow {
                    Flow::Behind { from, .. } => lowest.min(*from),
                    Flow::Forward => lowest,
                };
                self.fall_behind(&name, from, Wait::Until(until), now);
                let hash = crate::lease::fnv1a64(name.as_bytes());
                if let Some(high) = self.high.get_mut(&hash) {
                    *high = (*high).min(park.head.saturating_sub(1));
                }
            }
            OrderKey::Alone(seq) => {
                self.recalled.remove(seq);
                let mut state = KeyState::new(now);
                state.strikes = park.strikes;
                state.repeat = park.repeat;
                // Its settlement may have overtaken this word.
                if park.settling && self.outstanding.contains_key(seq) {
                    state.handed(*seq);
                }
                self.park_alone(*seq, state, Wait::Until(until));
            }
        }
    }

    /// An event without a key waits for `pause` milliseconds and is read again.
    fn wait_alone(&mut self, seq: i64, pause: u64, now: u64) {
        self.on_park(
            Park {
                key: OrderKey::Alone(seq),
                head: seq,
                pause,
                settling: false,
                strikes: Strikes::default(),
                repeat: Some(seq),
                returned: Vec::new(),
            },
            now,
        );
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
        self.suspect(&lost);
        for (index, seq) in lost.iter().enumerate() {
            if let Some((_, weight)) = self.outstanding.remove(seq) {
                self.budget.give(weight);
            }
            if key.is_none() {
                // Apart, so that the next time fewer of them are in the same hand.
                let apart = SPREAD * (index as u64 / APART);
                self.wait_alone(*seq, pause + apart, now);
            }
        }
        let Some(key) = key else { return };
        let Some(state) = self.keys.get_mut(key) else {
            return;
        };
        state.held = 0;
        state.halted = false;
        state.held_max = i64::MIN;
        if let Some(lowest) = lost.iter().min() {
            state.repeat = state.repeat.max(lost.iter().max().copied());
            state.careful_to = state.careful_to.max(lost.iter().max().copied());
            let from = match &state.flow {
                Flow::Behind { from, .. } => (*from).min(*lowest),
                Flow::Forward => *lowest,
            };
            self.fall_behind(key, from, Wait::Until(now.saturating_add(pause)), now);
        }
    }

    /// Whoever had these in hand died. The third time, and if there was nothing else in that hand, it was this event.
    fn suspect(&mut self, lost: &[i64]) {
        for seq in lost {
            let falls = self.falls.entry(*seq).or_default();
            *falls += 1;
            if *falls >= FALLS && lost.len() == 1 {
                self.condemned.insert(*seq);
            }
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

    /// Forgets sent seqs below which no gap is open: nothing can come late behind them.
    pub(super) fn prune_high(&mut self) {
        match self.cursor.gaps().first() {
            // A row that just left its gap is still on its way to its key.
            None if self.fetching.is_empty() => self.high.clear(),
            None => {}
            Some(gap) if self.high.len() >= MAX_HIGH / 2 => self.high.retain(|_, high| *high > gap),
            Some(_) => {}
        }
    }

    /// A row found again through the index on due times, after keys had to be dropped.
    pub fn on_due_row(&mut self, key: &OrderKey, seq: i64, pause: u64, now: u64) {
        if self.is_known(seq) {
            return;
        }
        let wait = Wait::Until(now.saturating_add(pause));
        match key {
            OrderKey::Named(name) if !self.keys.contains_key(name) => {
                // Earlier rows of the key may exist; its own run is read from the start.
                self.fall_behind(name, i64::MIN, wait, now);
            }
            OrderKey::Alone(_) if !self.alone.contains_key(&seq) => {
                self.park_alone(seq, KeyState::new(now), wait);
            }
            OrderKey::Named(_) | OrderKey::Alone(_) => {}
        }
    }

    /// Parks one event without a key.
    pub(super) fn park_alone(&mut self, seq: i64, mut state: KeyState, wait: Wait) {
        state.flow = Flow::Behind {
            from: seq,
            passed: 0,
            wait,
        };
        self.alone.insert(seq, state);
        self.rewait(&OrderKey::Alone(seq), None, wait);
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
        self.on_settled(seq, false, false, now);
        self.on_park(
            Park {
                key: OrderKey::of(key.as_ref(), seq),
                head: seq,
                pause,
                settling: false,
                strikes: Strikes::default(),
                repeat: Some(seq),
                returned: Vec::new(),
            },
            now,
        );
    }

    /// The due times, to take in a walk.
    pub fn parked_mut(&mut self) -> &mut Parked {
        &mut self.parked
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::actor::claimer::feed::Limits;
    use crate::actor::claimer::feed::action::ReadPlan;
    use crate::event::{Payload, Timestamp};
    use crate::relay::GapGuard;
    use crate::retry::Policy;
    use crate::route::{Route, Routes};
    use crate::source::{Body, Row};

    fn row(seq: i64) -> Row {
        Row {
            seq,
            id: uuid::Uuid::from_u128(seq as u128),
            kind: "a".into(),
            ordering_key: Some("k".into()),
            due_in: Duration::ZERO,
            attempts: 0,
            done: false,
            skip: None,
            size: 2,
            body: Some(Body {
                payload: Payload::Json(bytes::Bytes::from_static(b"{}")),
                content_type: None,
                headers: "{}".into(),
                occurred_at: Timestamp(0),
            }),
        }
    }

    fn feed() -> Feed {
        let route = Route {
            name: "all".into(),
            kinds: vec!["*".into()],
            sinks: Arc::from([Arc::from("s")]),
            retry: Policy::default(),
        };
        let limits = Limits {
            events: 100,
            bytes: 1 << 20,
            parked: 10,
            guard: GapGuard::Off,
            watch_gaps: false,
        };
        Feed::new("s".into(), Routes::new(vec![route]), limits, i64::MIN)
    }

    #[test]
    fn an_event_that_re_entered_its_key_comes_back_from_before_a_failed_one() {
        let mut feed = feed();
        let plan = ReadPlan {
            after: i64::MIN,
            rows: 10,
            bodies: 10,
            bare_keys: Vec::new(),
        };
        feed.on_read(&plan, vec![row(58)], 0);
        feed.on_fetched(&[45], vec![row(45)], Origin::Command, 0);
        let park = Park {
            key: OrderKey::Named("k".into()),
            head: 58,
            pause: 10,
            settling: false,
            strikes: Strikes::default(),
            repeat: None,
            returned: vec![45, 58],
        };
        feed.on_park(park, 0);
        feed.on_time(10);
        let plan = feed.plan_catch_up().map(|plan| plan.keys);
        assert_eq!(plan, Some(vec![("k".into(), 45)]));
    }
}
