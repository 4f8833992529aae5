//! What was written and what the sinks were told to answer: the truth that a run is held against.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use uuid::Uuid;

use outboxd::source::admin::Discarded;

/// A committed event.
#[derive(Debug, Clone)]
pub struct Written {
    pub seq: i64,
    pub id: Uuid,
    pub kind: String,
}

#[derive(Debug, Default)]
struct State {
    written: Vec<Written>,
    requeued: HashSet<Uuid>,
    rejected: HashSet<(String, Uuid)>,
    skipped: HashSet<(String, Uuid)>,
    failed: HashMap<(String, Uuid), u32>,
    panicked: HashMap<(String, Uuid), u32>,
    kills: u32,
}

/// Shared by writers, sinks and the judge.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<State>>);

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn committed(&self, rows: Vec<Written>) {
        self.state().written.extend(rows);
    }

    pub fn requeued(&self, ids: &[Uuid]) {
        self.state().requeued.extend(ids);
    }

    pub fn rejected(&self, sink: &str, id: Uuid) {
        self.state().rejected.insert((sink.to_owned(), id));
    }

    pub fn skipped(&self, sink: &str, id: Uuid) {
        self.state().skipped.insert((sink.to_owned(), id));
    }

    /// The script answered in a way that may charge an attempt.
    pub fn failed(&self, sink: &str, id: Uuid) {
        *self
            .state()
            .failed
            .entry((sink.to_owned(), id))
            .or_default() += 1;
    }

    /// The sink's code panicked.
    pub fn panicked(&self, sink: &str, id: Uuid) {
        let at = (sink.to_owned(), id);
        *self.state().panicked.entry(at).or_default() += 1;
    }

    /// Somebody killed an actor, or a whole instance.
    pub fn killed(&self) {
        self.state().kills += 1;
    }

    pub fn written(&self) -> Vec<Written> {
        let mut written = self.state().written.clone();
        written.sort_by_key(|row| row.seq);
        written
    }

    /// Re-entered its key by an operator's word: the stated exception to the order.
    pub fn was_requeued(&self, id: Uuid) -> bool {
        self.state().requeued.contains(&id)
    }

    /// Did the script give a reason for this discard?
    pub fn excuses(&self, discarded: &Discarded, max_attempts: u32) -> bool {
        let state = self.state();
        let at = (discarded.sink.clone(), discarded.id);
        match discarded.reason.as_str() {
            "operator" => state.skipped.contains(&at),
            "permanent" => state.rejected.contains(&at),
            "retry_budget" => state.failed.get(&at).is_some_and(|n| *n >= max_attempts),
            // Whoever kills blindly, again and again, may hit the same event three times.
            "crashed" => state.kills >= 3 || state.panicked.get(&at).is_some_and(|n| *n >= 3),
            _ => false,
        }
    }
}
