//! What a batch of outcomes comes to, given what is in the database. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use uuid::Uuid;

use crate::source::{Outcome, Verdict};

/// What the database holds, under lock.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// (shard, token) pairs that hold.
    pub(super) held: HashSet<(u16, i64)>,
    /// Rows that are there.
    pub(super) rows: HashMap<i64, Uuid>,
    /// Sinks that are done with them.
    pub(super) done: HashMap<i64, HashSet<String>>,
}

/// What to write. Numbers are places in the batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// One flag per outcome.
    pub(super) applied: Vec<bool>,
    /// Published, under a token that holds.
    pub(super) history: Vec<usize>,
    /// Set aside.
    pub(super) discards: Vec<usize>,
    /// Done marks for events that others still wait for.
    pub(super) marks: Vec<usize>,
    /// Charged failures.
    pub(super) retries: Vec<usize>,
    /// Seqs of events that nobody waits for any more, ascending.
    pub(super) deletes: Vec<i64>,
}

/// Can the whole batch go in one statement? Published events only, each for a single sink, each once.
pub(super) fn simple(outcomes: &[Outcome]) -> bool {
    let mut seen = HashSet::with_capacity(outcomes.len());
    outcomes.iter().all(|outcome| {
        matches!(outcome.verdict, Verdict::Published { .. })
            && outcome.route.iter().all(|sink| *sink == outcome.sink)
            && seen.insert(outcome.seq)
    })
}

/// Decides.
///
/// An outcome applies if its row is there under its identity, its token holds the shard, and its sink was not
/// done with the row before. Without the token, a published outcome still leaves its mark, because it is a
/// fact; deleting stays with the owner.
pub(super) fn decide(outcomes: &[Outcome], found: &Found) -> Plan {
    let mut plan = Plan {
        applied: vec![false; outcomes.len()],
        ..Plan::default()
    };
    let mut done = found.done.clone();
    // Rows of which an owner spoke, with every sink that must be done before they may go.
    let mut owned: BTreeMap<i64, HashSet<&str>> = BTreeMap::new();
    let mut marks = Vec::new();
    for (place, outcome) in outcomes.iter().enumerate() {
        if found.rows.get(&outcome.seq) != Some(&outcome.id) {
            continue;
        }
        let held = found
            .held
            .contains(&(outcome.lease.shard, outcome.lease.token));
        if held {
            let required = owned.entry(outcome.seq).or_default();
            required.extend(outcome.route.iter().map(|sink| &**sink));
            required.insert(&outcome.sink);
        }
        let done = done.entry(outcome.seq).or_default();
        if done.contains(&*outcome.sink) {
            continue;
        }
        match &outcome.verdict {
            Verdict::Published { .. } => {
                done.insert(outcome.sink.to_string());
                marks.push(place);
                if held {
                    plan.history.push(place);
                }
            }
            Verdict::Discarded { .. } if held => {
                done.insert(outcome.sink.to_string());
                marks.push(place);
                plan.discards.push(place);
            }
            Verdict::Retried { .. } if held => plan.retries.push(place),
            Verdict::Discarded { .. } | Verdict::Retried { .. } => {}
        }
        if let Some(applied) = plan.applied.get_mut(place) {
            *applied = held;
        }
    }
    let finished = |seq: i64| {
        let (Some(required), Some(done)) = (owned.get(&seq), done.get(&seq)) else {
            return false;
        };
        required.iter().all(|sink| done.contains(*sink))
    };
    plan.deletes = owned.keys().copied().filter(|seq| finished(*seq)).collect();
    // The row goes, and its marks with it.
    let stays = |place: &usize| outcomes.get(*place).is_some_and(|o| !finished(o.seq));
    plan.marks = marks.into_iter().filter(stays).collect();
    plan.retries.retain(stays);
    last_word(&mut plan.retries, outcomes);
    plan
}

/// One statement may touch a row once: of several failures of one (event, sink), the last is written.
fn last_word(retries: &mut Vec<usize>, outcomes: &[Outcome]) {
    let mut seen = HashSet::new();
    retries.reverse();
    retries.retain(|place| {
        outcomes
            .get(*place)
            .is_some_and(|outcome| seen.insert((outcome.seq, &outcome.sink)))
    });
    retries.reverse();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::lease::Lease;
    use crate::source::DiscardReason;

    fn outcome(seq: i64, sink: &str, route: &[&str], token: i64, verdict: Verdict) -> Outcome {
        Outcome {
            seq,
            id: Uuid::from_u128(seq as u128),
            sink: sink.into(),
            route: route.iter().map(|s| Arc::from(*s)).collect(),
            lease: Lease { shard: 0, token },
            verdict,
        }
    }

    fn published() -> Verdict {
        Verdict::Published {
            attempts: 0,
            receipt: Default::default(),
        }
    }

    fn retried() -> Verdict {
        Verdict::Retried {
            attempts: 1,
            retry_in: Duration::from_secs(2),
            error: "no".into(),
        }
    }

    fn discarded() -> Verdict {
        Verdict::Discarded {
            reason: DiscardReason::Permanent,
            code: None,
            attempts: 1,
            error: "no".into(),
        }
    }

    /// Rows 1 to 9 are there; token 7 holds shard 0.
    fn found(done: &[(i64, &str)]) -> Found {
        let mut found = Found {
            held: HashSet::from([(0, 7)]),
            rows: (1..10)
                .map(|seq| (seq, Uuid::from_u128(seq as u128)))
                .collect(),
            ..Found::default()
        };
        for (seq, sink) in done {
            found
                .done
                .entry(*seq)
                .or_default()
                .insert((*sink).to_owned());
        }
        found
    }

    #[test]
    fn an_event_goes_when_the_last_sink_of_its_route_is_done() {
        let batch = [outcome(1, "a", &["a", "b"], 7, published())];
        let plan = decide(&batch, &found(&[]));
        assert_eq!((plan.marks, plan.deletes), (vec![0], vec![]));
        let plan = decide(&batch, &found(&[(1, "b")]));
        assert_eq!((plan.marks, plan.deletes), (vec![], vec![1]));
    }

    #[test]
    fn two_sinks_of_one_batch_finish_an_event_together() {
        let batch = [
            outcome(1, "a", &["a", "b"], 7, published()),
            outcome(1, "b", &["a", "b"], 7, discarded()),
        ];
        let plan = decide(&batch, &found(&[]));
        assert_eq!(plan.applied, [true, true]);
        assert_eq!((plan.history, plan.discards), (vec![0], vec![1]));
        assert_eq!((plan.marks, plan.deletes), (vec![], vec![1]));
    }

    #[test]
    fn without_the_token_only_the_fact_is_written() {
        let batch = [
            outcome(1, "a", &["a"], 6, published()),
            outcome(2, "a", &["a"], 6, retried()),
            outcome(3, "a", &["a"], 6, discarded()),
        ];
        let plan = decide(&batch, &found(&[]));
        assert_eq!(plan.applied, [false; 3]);
        assert_eq!(
            plan,
            Plan {
                applied: vec![false; 3],
                marks: vec![0],
                ..Plan::default()
            }
        );
    }

    #[test]
    fn a_gone_or_foreign_row_takes_nothing() {
        let mut foreign = outcome(2, "a", &["a"], 7, published());
        foreign.id = Uuid::from_u128(99);
        let batch = [outcome(10, "a", &["a"], 7, discarded()), foreign];
        let plan = decide(&batch, &found(&[]));
        assert_eq!(
            plan,
            Plan {
                applied: vec![false; 2],
                ..Plan::default()
            }
        );
    }

    #[test]
    fn what_is_done_is_not_done_again_but_may_be_finished() {
        let batch = [
            outcome(1, "a", &["a"], 7, published()),
            outcome(2, "a", &["a", "b"], 7, retried()),
        ];
        let plan = decide(&batch, &found(&[(1, "a"), (2, "a")]));
        assert_eq!(
            plan,
            Plan {
                applied: vec![false; 2],
                deletes: vec![1],
                ..Plan::default()
            }
        );
    }

    #[test]
    fn only_single_sink_publishes_are_simple() {
        assert!(simple(&[outcome(1, "a", &["a"], 7, published())]));
        assert!(!simple(&[outcome(1, "a", &["a", "b"], 7, published())]));
        assert!(!simple(&[outcome(1, "a", &["a"], 7, retried())]));
        let twice = outcome(1, "a", &["a"], 7, published());
        assert!(!simple(&[twice.clone(), twice]));
    }
}
