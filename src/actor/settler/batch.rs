//! Which outcomes go into one transaction, and how a refused batch is taken apart.

use crate::source::{Outcome, Verdict};

/// Most outcomes of one transaction.
pub const MAX: usize = 1_000;

/// Outcomes that wait, oldest first, in groups that must not be joined again.
#[derive(Debug, Default)]
pub struct Queue<T> {
    waiting: Vec<Item<T>>,
    /// Someone waits for the commit of one that waits.
    durable: bool,
    /// Parts of a refused batch, to be tried by themselves.
    parts: Vec<Vec<Item<T>>>,
}

/// An outcome with whoever wants to hear of it.
#[derive(Debug)]
pub struct Item<T> {
    /// What to write.
    pub outcome: Outcome,
    /// Whom to tell.
    pub tell: T,
}

impl<T> Queue<T> {
    /// Nothing waits.
    pub fn new() -> Self {
        Self {
            waiting: Vec::new(),
            durable: false,
            parts: Vec::new(),
        }
    }

    /// Adds an outcome.
    pub fn push(&mut self, item: Item<T>) {
        self.durable |= is_durable(&item.outcome);
        self.waiting.push(item);
    }

    /// Outcomes waiting.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.parts.iter().map(Vec::len).sum::<usize>()
    }

    /// None waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Someone waits for a commit of one of these (a discard): do not wait for more.
    pub fn is_urgent(&self) -> bool {
        self.durable || !self.parts.is_empty() || self.waiting.len() >= MAX
    }

    /// The next batch: a part of a refused one first.
    pub fn next_batch(&mut self) -> Vec<Item<T>> {
        if let Some(part) = self.parts.pop() {
            return part;
        }
        let rest = self.waiting.split_off(self.waiting.len().min(MAX));
        self.durable = rest.iter().any(|item| is_durable(&item.outcome));
        std::mem::replace(&mut self.waiting, rest)
    }

    /// The database could not be reached: the batch is first again.
    pub fn put_back(&mut self, batch: Vec<Item<T>>) {
        self.parts.push(batch);
    }

    /// The database refused the batch: halves are tried by themselves. A single outcome that is refused alone
    /// comes back to the caller.
    pub fn split(&mut self, mut batch: Vec<Item<T>>) -> Option<Item<T>> {
        if batch.len() <= 1 {
            return batch.pop();
        }
        let right = batch.split_off(batch.len() / 2);
        self.parts.push(right);
        self.parts.push(batch);
        None
    }
}

/// Must the commit of this outcome wait for the disk? A lost discard would let the key's next event pass an
/// event that comes back.
pub fn is_durable(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Verdict::Discarded { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;
    use crate::sink::Receipt;
    use crate::source::DiscardReason;
    use std::sync::Arc;

    fn item(seq: i64, verdict: Verdict) -> Item<()> {
        let sink: Arc<str> = "s".into();
        Item {
            outcome: Outcome {
                seq,
                id: uuid::Uuid::nil(),
                sink: Arc::clone(&sink),
                route: Arc::from([sink]),
                lease: Lease { shard: 0, token: 1 },
                verdict,
            },
            tell: (),
        }
    }

    fn published(seq: i64) -> Item<()> {
        item(
            seq,
            Verdict::Published {
                attempts: 0,
                receipt: Receipt::default(),
            },
        )
    }

    fn seqs(batch: &[Item<()>]) -> Vec<i64> {
        batch.iter().map(|item| item.outcome.seq).collect()
    }

    #[test]
    fn a_refused_batch_is_halved_until_the_bad_outcome_stands_alone() {
        let mut queue = Queue::new();
        (0..8).for_each(|seq| queue.push(published(seq)));
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        while !queue.is_empty() {
            let batch = queue.next_batch();
            if seqs(&batch).contains(&5) {
                bad.extend(queue.split(batch).map(|item| item.outcome.seq));
            } else {
                good.extend(seqs(&batch));
            }
        }
        good.sort_unstable();
        assert_eq!(good, [0, 1, 2, 3, 4, 6, 7]);
        assert_eq!(bad, [5]);
    }

    #[test]
    fn batches_are_bounded_and_a_failed_one_comes_first_again() {
        let mut queue = Queue::new();
        (0..MAX as i64 + 5).for_each(|seq| queue.push(published(seq)));
        let batch = queue.next_batch();
        assert_eq!(batch.len(), MAX);
        queue.put_back(batch);
        assert_eq!(queue.next_batch().len(), MAX);
        assert_eq!(queue.next_batch().len(), 5);
    }

    #[test]
    fn a_discard_does_not_wait_for_company() {
        let mut queue = Queue::new();
        queue.push(published(1));
        assert!(!queue.is_urgent());
        queue.push(item(
            2,
            Verdict::Discarded {
                reason: DiscardReason::Permanent,
                code: None,
                attempts: 1,
                error: String::new(),
            },
        ));
        assert!(queue.is_urgent());
    }
}
