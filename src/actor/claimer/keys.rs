//! What a feed knows of one ordering key with work.

use std::fmt;
use std::sync::Arc;

/// What keeps an order of its own: a named key, or a single event without a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OrderKey {
    /// Events of this key follow their `seq`.
    Named(Arc<str>),
    /// One event without a key, by its seq.
    Alone(i64),
}

impl OrderKey {
    /// The key of a row.
    pub fn of(ordering_key: Option<&Arc<str>>, seq: i64) -> Self {
        match ordering_key {
            Some(key) => Self::Named(Arc::clone(key)),
            None => Self::Alone(seq),
        }
    }

    /// The name, if it has one.
    pub fn name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Named(key) => Some(key),
            Self::Alone(_) => None,
        }
    }
}

impl fmt::Display for OrderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(key) => f.write_str(key),
            Self::Alone(seq) => write!(f, "(seq {seq})"),
        }
    }
}

/// Failures in a row that charged nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strikes {
    /// How many that may become the event's own fault.
    pub count: u32,
    /// How often in a row the sink had no room.
    pub full: u32,
    /// How often in a row the sink's code panicked over it.
    pub panics: u32,
    /// What the sink had taken of others when the last one happened: more by the next one means that others
    /// succeed.
    pub successes: u64,
}

impl Strikes {
    /// Has it failed at all?
    pub fn any(&self) -> bool {
        self.count > 0 || self.full > 0 || self.panics > 0
    }
}

/// One key's place between the cursor, the table and its sequencer.
#[derive(Debug, Clone)]
pub struct KeyState {
    /// Events handed to the sequencer and not yet settled.
    pub held: usize,
    /// The highest of them.
    pub held_max: i64,
    /// How rows reach the sequencer.
    pub flow: Flow,
    /// Failures in a row that charged nothing, for the head.
    pub strikes: Strikes,
    /// Events up to here may have been stored by hand-overs whose answers were lost.
    pub repeat: Option<i64>,
    /// The sink took one of its events as new, so those behind it were not stored by an earlier incarnation.
    pub certain: bool,
    /// A row below a read under way that this read does not bring.
    pub late: Option<i64>,
    /// Its sequencer was told to send nothing more: nothing goes to it until all of it is back.
    pub halted: bool,
    /// Its sequencer died: up to here one event at a time.
    pub careful_to: Option<i64>,
    /// When `held` became zero, milliseconds.
    pub idle_since: u64,
    window_start: u64,
    window_count: usize,
    last_window: usize,
}

/// How rows of a key reach its sequencer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flow {
    /// Straight from the forward reads.
    Forward,
    /// Rows from `from` on are passed over; the key's own run is read instead, until a read that began after
    /// the last passing over has come to the end of the run.
    Behind {
        /// The lowest row not handed over.
        from: i64,
        /// Counts what was passed over, so that a read can tell whether something came meanwhile.
        passed: u64,
        /// What the key waits for.
        wait: Wait,
    },
}

/// What a key that is behind waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A time, in milliseconds.
    Until(u64),
    /// Its sequencer: too much is held, or the head is not settled yet.
    Drain,
    /// An operator's word: its head is paused.
    Paused,
    /// A reader: it is in the queue of keys to read.
    Ready,
    /// A read that is under way, begun when `passed` had this value.
    Reading(u64),
}

/// Length of the window in which a key's settlements are counted, milliseconds.
const WINDOW_MS: u64 = 100;

impl KeyState {
    /// A key that nothing is known of yet.
    pub fn new(now: u64) -> Self {
        Self {
            held: 0,
            held_max: i64::MIN,
            flow: Flow::Forward,
            strikes: Strikes::default(),
            repeat: None,
            certain: false,
            late: None,
            halted: false,
            careful_to: None,
            idle_since: now,
            window_start: now,
            window_count: 0,
            last_window: 0,
        }
    }

    /// How much this key may hold: its `share` of the budget, or what it settled in a recent 100 ms if that is more.
    pub fn cap(&self, share: usize) -> usize {
        match self.careful_to {
            Some(_) => 1,
            None => share.max(self.window_count).max(self.last_window),
        }
    }

    /// Takes in an event handed over.
    pub fn handed(&mut self, seq: i64) {
        self.held += 1;
        self.held_max = self.held_max.max(seq);
    }

    /// Takes in an event settled.
    pub fn settled(&mut self, now: u64) {
        if now.saturating_sub(self.window_start) >= WINDOW_MS {
            let stale = now.saturating_sub(self.window_start) >= 2 * WINDOW_MS;
            self.last_window = if stale { 0 } else { self.window_count };
            self.window_count = 0;
            self.window_start = now;
        }
        self.window_count += 1;
        self.let_go(now);
    }

    /// Takes in an event that came back unsent.
    pub fn let_go(&mut self, now: u64) {
        self.held = self.held.saturating_sub(1);
        if self.held == 0 {
            self.idle_since = now;
            self.held_max = i64::MIN;
        }
    }

    /// A row at `seq` has to be read (again): the run starts there. While a read is under way, the mark is
    /// kept until it has returned.
    pub fn lower_from(&mut self, seq: i64) {
        if let Flow::Behind { from, wait, .. } = &mut self.flow {
            if matches!(wait, Wait::Reading(_)) {
                self.late = Some(self.late.map_or(seq, |late| late.min(seq)));
            } else {
                *from = (*from).min(seq);
            }
        }
    }

    /// May the key's own run be read from `from` on? Not while a row at or above it is out, and not before half of
    /// what it may hold is done.
    pub fn may_read(&self, from: i64, share: usize) -> bool {
        self.held == 0 || (!self.halted && self.held_max < from && self.held <= self.cap(share) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_key_may_hold_what_it_settles_in_a_tenth_of_a_second() {
        let mut key = KeyState::new(0);
        for seq in 0..1_000 {
            key.handed(seq);
        }
        for _ in 0..900 {
            key.settled(50);
        }
        assert_eq!(key.cap(256), 900);
        key.settled(120);
        assert_eq!(key.cap(256), 900);
        key.settled(1_000);
        assert_eq!(key.cap(256), 256, "a pause ends the claim");
    }

    #[test]
    fn a_key_is_not_read_while_a_row_at_or_above_the_mark_is_out() {
        let mut key = KeyState::new(0);
        key.handed(7);
        assert!(!key.may_read(7, 256));
        assert!(key.may_read(8, 256));
        key.settled(1);
        assert!(key.may_read(7, 256));
    }
}
