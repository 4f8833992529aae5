//! The run of a sequencer: its events in order, and which of them may go out now.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::actor::claimer::feed::action::Work;

/// Does anything wait for anything?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Events of a key: by seq.
    Kept,
    /// Events without a key: all at once.
    None,
}

/// Events in hand, by seq.
#[derive(Debug)]
pub struct Run {
    order: Order,
    waiting: BTreeMap<i64, Work>,
    out: BTreeMap<i64, Work>,
    /// What is out, in the order in which it went; what was answered may still stand in it.
    sent: VecDeque<i64>,
    /// What is out wants to be alone.
    out_alone: bool,
    /// Discards that are not committed yet: with order kept, nothing follows them before.
    closing: BTreeSet<i64>,
    last_sent: i64,
    /// The sink had to store an event that may have been stored before, so it has none of those behind it.
    certain: bool,
    /// One failed: nothing goes out before everything is back.
    stopped: bool,
    halted: bool,
}

/// An event that may go out.
#[derive(Debug)]
pub struct Next {
    /// The event.
    pub work: Work,
    /// Nothing else of its key is out, nor will be before it is answered.
    pub alone: bool,
}

impl Run {
    /// An empty run. `floor` is the highest seq of the key that an earlier sequencer may have sent.
    pub fn new(order: Order, floor: i64) -> Self {
        Self {
            order,
            waiting: BTreeMap::new(),
            out: BTreeMap::new(),
            sent: VecDeque::new(),
            out_alone: false,
            closing: BTreeSet::new(),
            last_sent: floor,
            certain: false,
            stopped: false,
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

    /// The next event that may go out, now counted as out. `together`: the sink keeps those in order that are
    /// out at the same time.
    pub fn take_next(&mut self, together: bool) -> Option<Next> {
        if self.halted || self.stopped {
            return None;
        }
        let alone = self.wants_to_be_alone(self.waiting.first_key_value()?.1);
        if self.order == Order::Kept {
            let crowded = alone || self.out_alone || !together;
            if !self.closing.is_empty() || (crowded && !self.out.is_empty()) {
                return None;
            }
            self.out_alone = alone;
        }
        let (seq, work) = self.waiting.pop_first()?;
        self.last_sent = self.last_sent.max(seq);
        if self.order == Order::Kept {
            if self.out.is_empty() {
                self.sent.clear();
            }
            self.sent.push_back(seq);
        }
        self.out.insert(seq, work.clone());
        Some(Next { work, alone })
    }

    /// An event that failed before, or may be stored already, wants an answer of its own.
    fn wants_to_be_alone(&self, work: &Work) -> bool {
        let in_doubt = work.may_be_repeat && !self.certain;
        in_doubt || work.attempts > 0 || work.strikes.any() || work.skip.is_some()
    }

    /// The sink stored an event that was in doubt, and did not know it.
    pub fn was_new(&mut self) {
        self.certain = self.order == Order::Kept;
    }

    /// Takes an event that was answered out of the ones that are out.
    pub fn answered(&mut self, seq: i64) -> Option<Work> {
        self.out.remove(&seq)
    }

    /// The first of those that are out was stored: takes it out.
    pub fn stored_first(&mut self) -> Option<i64> {
        while let Some(seq) = self.sent.pop_front() {
            if self.out.remove(&seq).is_some() {
                return Some(seq);
            }
        }
        None
    }

    /// Something waits until others are back.
    pub fn waits_for_others(&self) -> bool {
        !self.waiting.is_empty() && !self.out.is_empty() && !self.halted
    }

    /// Nothing is out.
    pub fn is_back(&self) -> bool {
        self.out.is_empty()
    }

    /// One failed: sends nothing more before [`Run::go_on`].
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// One has failed, and others are out still.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Everything is back.
    pub fn go_on(&mut self) {
        self.stopped = false;
    }

    /// Puts an event back in its place, to be offered again.
    pub fn again(&mut self, work: Work) {
        // What follows may have been stored as well as this one.
        self.certain &= !work.may_be_repeat;
        self.waiting.insert(work.event.seq, work);
    }

    /// The highest seq that waits and may be stored already.
    pub fn in_doubt(&self) -> Option<i64> {
        let mut waiting = self.waiting.values().rev();
        let last = waiting.find(|work| work.may_be_repeat)?;
        Some(last.event.seq)
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
    #![allow(clippy::unwrap_used)]

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
        seqs_of(run, false)
    }

    fn seqs_of(run: &mut Run, together: bool) -> Vec<i64> {
        std::iter::from_fn(|| run.take_next(together).map(|next| next.work.event.seq)).collect()
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
        assert!(run.take_next(true).is_none());
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
        run.take_next(false);
        assert_eq!(run.halt(), [2, 3]);
        assert!(run.take_next(true).is_none());
        assert!(run.answered(1).is_some());
    }

    #[test]
    fn together_where_the_sink_keeps_order_and_none_in_doubt_among_them() {
        let mut run = Run::new(Order::Kept, i64::MIN);
        let failed = Work {
            attempts: 1,
            ..work(3)
        };
        run.push(vec![work(1), work(2), failed, work(4), work(5)]);
        assert_eq!(seqs_of(&mut run, true), [1, 2]);
        run.answered(1);
        assert!(run.take_next(true).is_none(), "2 is out");
        run.answered(2);
        assert_eq!(seqs_of(&mut run, true), [3]);
        run.answered(3);
        assert_eq!(seqs_of(&mut run, true), [4, 5]);
    }

    #[test]
    fn doubt_ends_with_the_first_that_was_new() {
        let mut run = Run::new(Order::Kept, i64::MIN);
        let doubtful = |seq| Work {
            may_be_repeat: true,
            ..work(seq)
        };
        run.push((1..=6).map(doubtful).collect());
        assert_eq!(seqs_of(&mut run, true), [1]);
        run.answered(1);
        assert_eq!(seqs_of(&mut run, true), [2], "1 was stored before");
        run.answered(2);
        run.was_new();
        assert_eq!(seqs_of(&mut run, true), [3, 4, 5, 6]);
        // A lost answer casts new doubt.
        for seq in [4, 3] {
            run.answered(seq);
            run.again(doubtful(seq));
        }
        for seq in [5, 6] {
            run.answered(seq);
        }
        assert_eq!(run.in_doubt(), Some(4));
        assert_eq!(seqs_of(&mut run, true), [3]);
    }

    #[test]
    fn nothing_goes_out_between_a_failure_and_the_return_of_the_rest() {
        let mut run = Run::new(Order::Kept, i64::MIN);
        run.push((1..=3).map(work).collect());
        assert_eq!(seqs_of(&mut run, true), [1, 2, 3]);
        let first = run.answered(1).unwrap();
        run.stop();
        run.again(first);
        run.push(vec![work(4)]);
        assert!(run.take_next(true).is_none());
        for seq in [2, 3] {
            let behind = run.answered(seq).unwrap();
            run.again(behind);
        }
        assert!(run.is_back());
        run.go_on();
        assert_eq!(seqs_of(&mut run, true), [1, 2, 3, 4]);
    }
}
