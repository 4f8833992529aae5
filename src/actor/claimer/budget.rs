//! How much a feed may hold in memory: events and bytes, from reading to settlement.

/// A read that brings less than this part of what an empty budget would allow is not worth its statement.
const WORTH: usize = 8;

/// The bound of one feed. What is taken comes back when the outcome is committed.
#[derive(Debug, Clone)]
pub struct Budget {
    max_events: usize,
    max_bytes: usize,
    /// Fewer events for a while.
    limit: usize,
    events: usize,
    bytes: usize,
    /// Events that reads under way may bring.
    reserved: usize,
    /// Average weight of what was taken lately, so that a read does not ask for more than fits.
    typical: usize,
}

impl Budget {
    /// A budget with nothing taken. Zero bounds count as one.
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        Self {
            max_events: max_events.max(1),
            max_bytes: max_bytes.max(1),
            limit: usize::MAX,
            events: 0,
            bytes: 0,
            reserved: 0,
            typical: 1024,
        }
    }

    /// How many events a read may ask for now: bounded by `batch`, the free events, and the bytes that
    /// events of the usual size would need. Zero: do not read; also when it would be so few that waiting for
    /// more room is cheaper.
    pub fn allowance(&self, batch: usize) -> usize {
        let taken = self.events + self.reserved;
        let free_bytes = self
            .max_bytes
            .saturating_sub(self.bytes + self.reserved * self.typical);
        let free = self.fits(self.most().saturating_sub(taken), free_bytes, batch);
        let whole = self.fits(self.most(), self.max_bytes, batch);
        if free * WORTH >= whole || (taken == 0 && free > 0) {
            free
        } else {
            0
        }
    }

    /// Most events for now.
    pub fn limit(&mut self, events: usize) {
        self.limit = events.max(1);
    }

    fn most(&self) -> usize {
        self.max_events.min(self.limit)
    }

    fn fits(&self, events: usize, bytes: usize, batch: usize) -> usize {
        if bytes == 0 {
            return 0;
        }
        events.min(batch).min((bytes / self.typical).max(1))
    }

    /// Keeps room for what a read may bring.
    pub fn reserve(&mut self, events: usize) {
        self.reserved += events;
    }

    /// The read has returned.
    pub fn release(&mut self, events: usize) {
        self.reserved = self.reserved.saturating_sub(events);
    }

    /// Is there room for one more event? The last one may go over the bytes, so that an event larger than the
    /// bound passes alone.
    pub fn has_room(&self) -> bool {
        self.events < self.most() && self.bytes < self.max_bytes
    }

    /// Takes an event in.
    pub fn take(&mut self, weight: usize) {
        self.events += 1;
        self.bytes += weight;
        self.typical = ((self.typical * 15 + weight) / 16).max(1);
    }

    /// Gives an event's share back.
    pub fn give(&mut self, weight: usize) {
        self.events = self.events.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(weight);
    }

    /// The share that one key may hold: a sixteenth, at least one.
    pub fn key_share(&self) -> usize {
        (self.most() / 16).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn no_room_no_read_and_room_comes_back() {
        let mut budget = Budget::new(2, 1 << 20);
        budget.take(100);
        budget.take(100);
        assert!(!budget.has_room());
        assert_eq!(budget.allowance(500), 0);
        budget.give(100);
        assert_eq!(budget.allowance(500), 1);
    }

    #[test]
    fn reads_under_way_keep_their_room_and_tiny_reads_wait() {
        let mut budget = Budget::new(1_000, 1 << 30);
        assert_eq!(budget.allowance(500), 500);
        budget.reserve(500);
        assert_eq!(budget.allowance(500), 500);
        budget.reserve(480);
        assert_eq!(budget.allowance(500), 0, "twenty are not worth a statement");
        budget.release(480);
        assert_eq!(budget.allowance(500), 500);
    }

    #[test]
    fn an_event_larger_than_the_bound_passes_alone() {
        let mut budget = Budget::new(100, 1_000);
        assert!(budget.has_room());
        budget.take(5_000);
        assert!(!budget.has_room());
        assert_eq!(budget.allowance(500), 0);
        budget.give(5_000);
        assert!(budget.has_room());
    }

    #[test]
    fn large_events_make_reads_smaller() {
        let mut budget = Budget::new(4_096, 1 << 20);
        for _ in 0..200 {
            budget.take(100_000);
            budget.give(100_000);
        }
        assert!(budget.allowance(500) <= 11, "{}", budget.allowance(500));
    }
}
