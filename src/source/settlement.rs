//! What a batch of outcomes does to an outbox, decided without touching it.
//!
//! Sources that can lock what a batch is about, read it, and write the result use this: they collect
//! [`Facts`], and carry out the [`Settlement`] in the same transaction.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use super::{Outcome, Verdict};
use crate::sink::Receipt;

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

/// A mark that is there.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// Whose it is.
    pub(crate) sink: String,
    /// What it says.
    pub(crate) mark: Mark,
    /// A publish that the history lacks, because whoever told of it held no token: charged failures, acknowledgement.
    pub(crate) owed: Option<(u32, Receipt)>,
}

/// What the outbox holds about the rows of a batch, read under a lock that keeps it true.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The token that holds each shard.
    pub(crate) tokens: HashMap<u16, i64>,
    /// The rows there are, by seq.
    pub(crate) rows: HashMap<i64, Uuid>,
    /// The marks there are, by seq.
    pub(crate) marks: HashMap<i64, Vec<Known>>,
}

impl Facts {
    fn mark(&self, seq: i64, sink: &str) -> Option<&Known> {
        let marks = self.marks.get(&seq)?;
        marks.iter().find(|known| known.sink == sink)
    }

    fn done(&self, seq: i64, sink: &str) -> bool {
        self.mark(seq, sink).is_some_and(|known| known.mark.done())
    }

    fn set(&mut self, seq: i64, known: Known) {
        let marks = self.marks.entry(seq).or_default();
        marks.retain(|old| old.sink != known.sink);
        marks.push(known);
    }

    /// What the history lacks of a row that `outcome` lets go.
    fn recall(&self, outcome: &Outcome) -> impl Iterator<Item = Outcome> {
        let marks = self.marks.get(&outcome.seq).into_iter().flatten();
        marks.filter_map(|known| {
            let (attempts, receipt) = known.owed.clone()?;
            let verdict = Verdict::Published { attempts, receipt };
            Some(Outcome {
                sink: Arc::from(&*known.sink),
                verdict,
                ..outcome.clone()
            })
        })
    }
}

/// A mark to write.
#[derive(Debug)]
pub(crate) struct Marked<'a> {
    /// What it says.
    pub(crate) mark: Mark,
    /// It is no publish that the history lacks.
    pub(crate) kept: bool,
    /// Whence.
    pub(crate) outcome: &'a Outcome,
}

/// What to write.
#[derive(Debug, Default)]
pub(crate) struct Settlement<'a> {
    /// One per outcome: it applied.
    pub(crate) flags: Vec<bool>,
    /// Published outcomes to put into the history. Copy them before the deletions.
    pub(crate) history: Vec<Cow<'a, Outcome>>,
    /// Discards to put into the discarded table. Copy them before the deletions.
    pub(crate) discards: Vec<&'a Outcome>,
    /// Delivery rows to write, for rows that stay.
    pub(crate) marks: Vec<Marked<'a>>,
    /// Rows to delete, with all their delivery rows.
    pub(crate) deletions: Vec<i64>,
}

impl<'a> Settlement<'a> {
    /// Applies `outcomes` one after the other to what `facts` says.
    pub(crate) fn decide(outcomes: &'a [Outcome], mut facts: Facts) -> Self {
        let mut settlement = Self::default();
        let mut written: BTreeMap<(i64, &str), Marked<'a>> = BTreeMap::new();
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
            let known = facts.mark(seq, sink);
            let done = known.is_some_and(|known| known.mark.done());
            let owed = known.is_some_and(|known| known.owed.is_some());
            // What a stale owner told is told again by one whose word the history takes.
            if !done || (owed && held && mark == Mark::Published) {
                let owed = match &outcome.verdict {
                    Verdict::Published { attempts, receipt } if !held => {
                        Some((*attempts, receipt.clone()))
                    }
                    _ => None,
                };
                let kept = owed.is_none();
                match mark {
                    Mark::Published if kept => settlement.history.push(Cow::Borrowed(outcome)),
                    Mark::Discarded => settlement.discards.push(outcome),
                    Mark::Published | Mark::Retrying => {}
                }
                let marked = Marked {
                    mark,
                    kept,
                    outcome,
                };
                written.insert((seq, sink), marked);
                let sink = sink.to_owned();
                facts.set(seq, Known { sink, mark, owed });
            }
            let mut route = outcome.route.iter().chain([&outcome.sink]);
            if held && route.all(|sink| facts.done(seq, sink)) {
                settlement
                    .history
                    .extend(facts.recall(outcome).map(Cow::Owned));
                settlement.deletions.push(seq);
                facts.rows.remove(&seq);
            }
        }
        let stays = |marked: &Marked<'_>| facts.rows.contains_key(&marked.outcome.seq);
        settlement.marks = written.into_values().filter(stays).collect();
        settlement
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lease::Lease;

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

    fn known(sink: &str, owed: Option<(u32, Receipt)>) -> Known {
        Known {
            sink: sink.to_owned(),
            mark: Mark::Published,
            owed,
        }
    }

    fn history<'a>(settlement: &'a Settlement<'_>) -> Vec<&'a str> {
        let told = settlement.history.iter();
        told.map(|outcome| &*outcome.sink).collect()
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
        assert!(!settlement.marks[0].kept);
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
        for owed in [None, Some((0, Receipt::default()))] {
            let mut facts = facts();
            let expected = if owed.is_some() {
                &["b", "a"][..]
            } else {
                &["b"]
            };
            facts.set(1, known("a", owed));
            let outcomes = [outcome(1, &["b", "a"], 5, published())];
            let settlement = Settlement::decide(&outcomes, facts);
            assert_eq!(settlement.deletions, [1]);
            assert_eq!(history(&settlement), expected);
        }
    }

    #[test]
    fn what_a_fenced_publish_told_is_in_the_history_once() {
        let told = |sinks: &[&str], token| outcome(1, sinks, token, published());
        let in_one_batch = [told(&["a"], 4), told(&["a"], 5)];
        let settlement = Settlement::decide(&in_one_batch, facts());
        assert_eq!(history(&settlement), ["a"]);
        let in_two = [told(&["a"], 5)];
        let mut earlier = facts();
        earlier.set(1, known("a", Some((0, Receipt::default()))));
        let settlement = Settlement::decide(&in_two, earlier);
        assert_eq!(history(&settlement), ["a"]);
        let of_a_row_that_stays = [
            told(&["a", "b"], 4),
            told(&["a", "b"], 5),
            told(&["a", "b"], 5),
        ];
        let settlement = Settlement::decide(&of_a_row_that_stays, facts());
        assert_eq!(history(&settlement), ["a"]);
        assert!(settlement.marks[0].kept && settlement.marks.len() == 1);
        let of_another_sink = [told(&["a", "b"], 4), told(&["b", "a"], 5)];
        let settlement = Settlement::decide(&of_another_sink, facts());
        assert_eq!(history(&settlement), ["b", "a"]);
        assert_eq!(settlement.deletions, [1]);
    }

    #[test]
    fn errors_lose_nul_and_what_is_too_long() {
        assert_eq!(clean("a\0b"), "ab");
        assert_eq!(clean(&"ü".repeat(3_000)).chars().count(), ERROR_LIMIT);
    }
}
