//! The run of a sequencer: its events in order, and which of them may go out now.

use std::collections::{BTreeMap, BTreeSet};

use crate::actor::claimer::feed::action::Work;

/// How many events may be out at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One at a time, by seq.
    Kept,
    /// All at once: events without a key.
    None,
}

/// Events in hand, by seq.
#[derive(Debug)]
pub struct Run {
    order: Order,
    waiting: BTreeMap<i64, Work>,
    out: BTreeMap<i64, Work>,
    /// Discards that are not committed yet: with order kept, nothing follows them before.
    closing: BTreeSet<i64>,
    last_sent: i64,
    halted: bool,
}

impl Run {
    /// An empty run. `floor` is the highest seq of the key that an earlier sequencer may have sent.
    pub fn new(order: Order, floor: i64) -> Self {
        Self {
            order,
            waiting: BTreeMap::new(),
            out: BTreeMap::new(),
            closing: BTreeSet::new(),
            last_sent: floor,
            halted: false,
        }
    }

    /// Takes events in. Returns how many of them come behind a later event of their key that was sent already.
    pub fn push(&mut self, work: Vec<Work>) -> u64 {
        let mut inversions = 0;
        for item in work {
            let seq = item.event.seq;
            if self.out.contains_key(&seq) {
                // Read again after another sequencer's death: it is out already, and has one answer.
                continue;
            }
            let late = self.order == Order::Kept && seq < self.last_sent && !item.reentered;
            inversions += u64::from(late);
            self.waiting.insert(seq, item);
        }
        inversions
    }

    /// The next event that may go out, now counted as out.
    pub fn take_next(&mut self) -> Option<Work> {
        let blocked =
            self.order == Order::Kept && !(self.out.is_empty() && self.closing.is_empty());
        if self.halted || blocked {
            return None;
        }
        let (seq, work) = self.waiting.pop_first()?;
        self.last_sent = self.last_sent.max(seq);
        self.out.insert(seq, work.clone());
        Some(work)
    }

    /// Takes an event that was answered out of the ones that are out.
    pub fn answered(&mut self, seq: i64) -> Option<Work> {
        self.out.remove(&seq)
    }

    /// Puts an event back in front, to be offered again.
    pub fn again(&mut self, work: Work) {
        self.waiting.insert(work.event.seq, work);
    }

    /// A discard is on its way to the database.
    pub fn closing(&mut self, seq: i64) {
        self.closing.insert(seq);
    }

    /// A discard was committed.
    pub fn closed(&mut self, seq: i64) {
        self.closing.remove(&seq);
    }

    /// Stops sending: what waits comes out, ascending; what is out stays until it is answered.
    pub fn halt(&mut self) -> Vec<i64> {
        self.halted = true;
        let seqs = self.waiting.keys().copied().collect();
        self.waiting.clear();
        seqs
    }

    /// Halted: whatever comes in has to go back.
    pub fn is_halted(&self) -> bool {
        self.halted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::{Event, Payload, Timestamp};
    use crate::retry::Policy;
    use crate::route::Route;

    fn work(seq: i64) -> Work {
        Work {
            event: Arc::new(Event {
                seq,
                id: uuid::Uuid::nil(),
                kind: "k".into(),
                ordering_key: Some("a".into()),
                payload: Payload::Json(bytes::Bytes::from_static(b"{}")),
                content_type: None,
                headers: "{}".into(),
                occurred_at: Timestamp(0),
            }),
            route: Arc::new(Route {
                name: "all".into(),
                kinds: vec!["*".into()],
                sinks: Arc::from([Arc::from("s")]),
                retry: Policy::default(),
            }),
            attempts: 0,
            strikes: crate::actor::claimer::keys::Strikes::default(),
            may_be_repeat: false,
            reentered: false,
            skip: None,
        }
    }

    fn seqs(run: &mut Run) -> Vec<i64> {
        std::iter::from_fn(|| run.take_next().map(|work| work.event.seq)).collect()
    }

    #[test]
    fn one_at_a_time_in_order_whatever_the_order_of_arrival() {
        let mut run = Run::new(Order::Kept, i64::MIN);
        run.push(vec![work(3), work(1)]);
        assert_eq!(seqs(&mut run), [1]);
        run.push(vec![work(2)]);
        run.answered(1);
        assert_eq!(seqs(&mut run), [2]);
    }

    #[test]
    fn nothing_follows_a_discard_before_it_is_committed() {
        let mut run = Run::new(Order::Kept, i64::MIN);
        run.push(vec![work(1), work(2)]);
        assert_eq!(seqs(&mut run), [1]);
        run.answered(1);
        run.closing(1);
        assert!(run.take_next().is_none());
        run.closed(1);
        assert_eq!(seqs(&mut run), [2]);
    }

    #[test]
    fn without_order_all_go_at_once() {
        let mut run = Run::new(Order::None, i64::MIN);
        run.push(vec![work(2), work(1)]);
        assert_eq!(seqs(&mut run), [1, 2]);
    }

    #[test]
    fn a_late_event_is_counted_only_when_a_later_one_was_sent() {
        let mut run = Run::new(Order::Kept, i64::MIN);
        run.push(vec![work(5), work(7)]);
        assert_eq!(seqs(&mut run), [5]);
        assert_eq!(run.push(vec![work(6)]), 0);
        assert_eq!(run.push(vec![work(4)]), 1);
        let mut fresh = Run::new(Order::Kept, 9);
        assert_eq!(
            fresh.push(vec![work(8)]),
            1,
            "an earlier sequencer had sent 9"
        );
        let back = Work {
            reentered: true,
            ..work(3)
        };
        assert_eq!(
            fresh.push(vec![back]),
            0,
            "an operator's word is no inversion"
        );
    }

    #[test]
    fn halting_returns_what_was_not_sent() {
        let mut run = Run::new(Order::Kept, i64::MIN);
        run.push(vec![work(1), work(2), work(3)]);
        run.take_next();
        assert_eq!(run.halt(), [2, 3]);
        assert!(run.take_next().is_none());
        assert!(run.answered(1).is_some());
    }
}
