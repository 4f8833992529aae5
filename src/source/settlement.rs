//! What a batch of outcomes does to an outbox, decided without touching it.
//!
//! Sources that can lock what a batch is about, read it, and write the result use this: they collect
//! [`Facts`], and carry out the [`Settlement`] in the same transaction.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::{Outcome, Verdict};

/// Characters of an error text that are kept.
pub(crate) const ERROR_LIMIT: usize = 2_048;

/// An error text as a database takes it: without NUL, cut to [`ERROR_LIMIT`] characters.
pub(crate) fn clean(text: &str) -> String {
    let kept = text.chars().filter(|char| *char != '\0');
    kept.take(ERROR_LIMIT).collect()
}

/// What is remembered about one event and sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It failed and will be tried again.
    Retrying,
    /// The sink has it.
    Published,
    /// It is set aside for this sink.
    Discarded,
}

impl Mark {
    /// The word in the table.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Retrying => "retry",
            Self::Published => "published",
            Self::Discarded => "discarded",
        }
    }

    /// Is the sink through with the event?
    pub(crate) fn done(self) -> bool {
        self != Self::Retrying
    }

    fn of(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Published { .. } => Self::Published,
            Verdict::Retried { .. } => Self::Retrying,
            Verdict::Discarded { .. } => Self::Discarded,
        }
    }
}

/// What the outbox holds about the rows of a batch, read under a lock that keeps it true.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The token that holds each shard.
    pub(crate) tokens: HashMap<u16, i64>,
    /// The rows there are, by seq.
    pub(crate) rows: HashMap<i64, Uuid>,
    /// The marks there are, by seq and sink.
    pub(crate) marks: HashMap<i64, Vec<(String, Mark)>>,
}

impl Facts {
    fn mark(&self, seq: i64, sink: &str) -> Option<Mark> {
        let marks = self.marks.get(&seq)?;
        let found = marks.iter().find(|(name, _)| name == sink);
        found.map(|(_, mark)| *mark)
    }

    fn set(&mut self, seq: i64, sink: &str, mark: Mark) {
        let marks = self.marks.entry(seq).or_default();
        match marks.iter_mut().find(|(name, _)| name == sink) {
            Some((_, old)) => *old = mark,
            None => marks.push((sink.to_owned(), mark)),
        }
    }
}

/// What to write.
#[derive(Debug, Default)]
pub(crate) struct Settlement<'a> {
    /// One per outcome: it applied.
    pub(crate) flags: Vec<bool>,
    /// Published outcomes to put into the history. Copy them before the deletions.
    pub(crate) history: Vec<&'a Outcome>,
    /// Discards to put into the discarded table. Copy them before the deletions.
    pub(crate) discards: Vec<&'a Outcome>,
    /// Delivery rows to write, for rows that stay.
    pub(crate) marks: Vec<(Mark, &'a Outcome)>,
    /// Rows to delete, with all their delivery rows.
    pub(crate) deletions: Vec<i64>,
}

impl<'a> Settlement<'a> {
    /// Applies `outcomes` one after the other to what `facts` says.
    pub(crate) fn decide(outcomes: &'a [Outcome], mut facts: Facts) -> Self {
        let mut settlement = Self::default();
        let mut written: BTreeMap<(i64, &'a str), (Mark, &'a Outcome)> = BTreeMap::new();
        for outcome in outcomes {
            let (seq, sink) = (outcome.seq, &*outcome.sink);
            let there = facts.rows.get(&seq) == Some(&outcome.id);
            let held = facts.tokens.get(&outcome.lease.shard) == Some(&outcome.lease.token);
            settlement.flags.push(there && held);
            let mark = Mark::of(&outcome.verdict);
            // A publish is a fact, whoever reports it; all else is the owner's to write.
            if !there || !(held || mark == Mark::Published) {
                continue;
            }
            if !facts.mark(seq, sink).is_some_and(Mark::done) {
                facts.set(seq, sink, mark);
                written.insert((seq, sink), (mark, outcome));
                match mark {
                    Mark::Published if held => settlement.history.push(outcome),
                    Mark::Discarded => settlement.discards.push(outcome),
                    Mark::Published | Mark::Retrying => {}
                }
            }
            let done = |sink: &str| facts.mark(seq, sink).is_some_and(Mark::done);
            if held && outcome.route.iter().all(|sink| done(sink)) && done(sink) {
                settlement.deletions.push(seq);
                facts.rows.remove(&seq);
            }
        }
        let stays = |(seq, _): &(i64, &str)| facts.rows.contains_key(seq);
        let marks = written.into_iter().filter(|(at, _)| stays(at));
        settlement.marks = marks.map(|(_, mark)| mark).collect();
        settlement
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::lease::Lease;
    use crate::sink::Receipt;

    fn outcome(seq: i64, sinks: &[&str], token: i64, verdict: Verdict) -> Outcome {
        Outcome {
            seq,
            id: Uuid::from_u128(seq as u128),
            sink: Arc::from(sinks[0]),
            route: sinks.iter().map(|sink| Arc::from(*sink)).collect(),
            lease: Lease { shard: 0, token },
            verdict,
        }
    }

    fn published() -> Verdict {
        Verdict::Published {
            attempts: 0,
            receipt: Receipt::default(),
        }
    }

    fn retried() -> Verdict {
        Verdict::Retried {
            attempts: 1,
            retry_in: Duration::from_secs(2),
            error: "no".into(),
        }
    }

    fn facts() -> Facts {
        Facts {
            tokens: HashMap::from([(0, 5)]),
            rows: (1..4)
                .map(|seq| (seq, Uuid::from_u128(seq as u128)))
                .collect(),
            marks: HashMap::new(),
        }
    }

    #[test]
    fn a_fenced_publish_is_a_mark_and_a_fenced_failure_nothing() {
        let outcomes = [
            outcome(1, &["a"], 4, published()),
            outcome(2, &["a"], 4, retried()),
        ];
        let settlement = Settlement::decide(&outcomes, facts());
        assert_eq!(settlement.flags, [false, false]);
        assert_eq!(settlement.marks.len(), 1);
        assert!(settlement.history.is_empty() && settlement.deletions.is_empty());
    }

    #[test]
    fn the_last_sink_deletes_and_a_deleted_row_needs_no_mark() {
        let outcomes = [
            outcome(1, &["a", "b"], 5, retried()),
            outcome(1, &["a", "b"], 5, published()),
            outcome(1, &["b", "a"], 5, published()),
            outcome(1, &["b", "a"], 5, published()),
        ];
        let settlement = Settlement::decide(&outcomes, facts());
        assert_eq!(settlement.flags, [true, true, true, false]);
        assert_eq!(settlement.deletions, [1]);
        assert_eq!(settlement.history.len(), 2);
        assert!(settlement.marks.is_empty());
    }

    #[test]
    fn an_owner_finishes_what_a_fenced_publish_began() {
        let mut facts = facts();
        facts.set(1, "a", Mark::Published);
        let outcomes = [outcome(1, &["b", "a"], 5, published())];
        let settlement = Settlement::decide(&outcomes, facts);
        assert_eq!(settlement.deletions, [1]);
    }

    #[test]
    fn errors_lose_nul_and_what_is_too_long() {
        assert_eq!(clean("a\0b"), "ab");
        assert_eq!(clean(&"ü".repeat(3_000)).chars().count(), ERROR_LIMIT);
    }
}
