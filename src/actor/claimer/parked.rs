//! Keys that wait for a time: in memory by due time, bounded; what does not fit is found again in the table.

use std::collections::BTreeSet;

use super::keys::OrderKey;

/// The due times of parked keys, milliseconds on the claimer's clock.
#[derive(Debug)]
pub struct Parked {
    by_due: BTreeSet<(u64, OrderKey)>,
    max: usize,
    /// Some keys are only in the table.
    overflowed: bool,
    /// Keys dropped so far.
    dropped: u64,
}

impl Parked {
    /// Nothing parked; at most `max` keys are kept in memory.
    pub fn new(max: usize) -> Self {
        Self {
            by_due: BTreeSet::new(),
            max: max.max(1),
            overflowed: false,
            dropped: 0,
        }
    }

    /// Adds a key. Returns a key that had to be dropped for it: the latest due, which may be this one.
    pub fn add(&mut self, due: u64, key: OrderKey) -> Option<OrderKey> {
        self.by_due.insert((due, key));
        if self.by_due.len() <= self.max {
            return None;
        }
        self.overflowed = true;
        self.dropped += 1;
        self.by_due.pop_last().map(|(_, key)| key)
    }

    /// Takes a key out.
    pub fn remove(&mut self, due: u64, key: &OrderKey) {
        self.by_due.remove(&(due, key.clone()));
    }

    /// Takes the next key whose time has come.
    pub fn pop_due(&mut self, now: u64) -> Option<OrderKey> {
        let first = self.by_due.first()?;
        if first.0 > now {
            return None;
        }
        self.by_due.pop_first().map(|(_, key)| key)
    }

    /// When the next key is due.
    pub fn next_due(&self) -> Option<u64> {
        self.by_due.first().map(|(due, _)| *due)
    }

    /// Keys in memory.
    pub fn count(&self) -> usize {
        self.by_due.len()
    }

    /// Some keys are only in the table: a key that memory does not know may have an earlier row there.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Should the table be asked for dropped keys now? True when half of the room is free again.
    pub fn wants_refill(&self) -> bool {
        self.overflowed && self.by_due.len() <= self.max / 2
    }

    /// Is there room for more of them?
    pub fn has_room(&self) -> bool {
        self.by_due.len() < self.max
    }

    /// Keys dropped so far; noted when a walk over the table begins.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// A walk over all due times in the table came to its end. When nothing was dropped since it began
    /// (`dropped_then`), memory knows every key again.
    pub fn walked(&mut self, dropped_then: u64) {
        if self.dropped == dropped_then {
            self.overflowed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> OrderKey {
        OrderKey::Named(name.into())
    }

    #[test]
    fn keys_come_out_by_due_time() {
        let mut parked = Parked::new(10);
        parked.add(20, key("b"));
        parked.add(10, key("a"));
        assert_eq!(parked.pop_due(9), None);
        assert_eq!(parked.pop_due(10), Some(key("a")));
        assert_eq!(parked.next_due(), Some(20));
    }

    #[test]
    fn the_latest_due_is_dropped_and_the_table_must_be_walked() {
        let mut parked = Parked::new(2);
        assert_eq!(parked.add(10, key("a")), None);
        assert_eq!(parked.add(30, key("c")), None);
        assert_eq!(parked.add(20, key("b")), Some(key("c")));
        assert!(parked.overflowed() && !parked.wants_refill());
        parked.pop_due(10);
        assert!(parked.wants_refill());
        let dropped = parked.dropped();
        parked.add(1, key("d"));
        parked.add(2, key("e"));
        parked.walked(dropped);
        assert!(parked.overflowed(), "one more was dropped during the walk");
        parked.walked(parked.dropped());
        assert!(!parked.overflowed());
    }
}
