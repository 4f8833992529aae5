//! What to break and what was called, whatever the calls are.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The call never reached the other side.
    Before,
    /// The other side did it, and the answer was lost.
    After,
}

/// An error that can be made to order.
pub(super) trait Injected<K> {
    fn injected(kind: K, words: String) -> Self;
}

#[derive(Debug, Clone)]
pub(super) struct Fault<K> {
    times: u32,
    kind: K,
    pub(super) when: When,
}

/// What one call runs into.
pub(super) struct Strike<K> {
    pub(super) delay: Duration,
    pub(super) late: Duration,
    pub(super) fault: Option<Fault<K>>,
    panics: bool,
}

#[derive(Debug)]
struct Planned<O, K> {
    faults: HashMap<O, Fault<K>>,
    outage: Option<K>,
    delays: HashMap<O, Duration>,
    late: HashMap<O, Duration>,
    panics: HashSet<O>,
    counts: HashMap<O, u64>,
}

/// What to break and what was called, by operations `O` and kinds of errors `K`; clones are the same plan.
#[derive(Debug, Clone)]
pub struct Plan<O, K>(Arc<Mutex<Planned<O, K>>>);

impl<O, K> Default for Plan<O, K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Planned {
            faults: HashMap::new(),
            outage: None,
            delays: HashMap::new(),
            late: HashMap::new(),
            panics: HashSet::new(),
            counts: HashMap::new(),
        })))
    }
}

impl<O: Copy + Eq + Hash + Debug, K: Clone> Plan<O, K> {
    fn planned(&self) -> MutexGuard<'_, Planned<O, K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `times` calls of `op` fail with `kind`, before or after the other side did what was asked.
    pub fn fail(&self, op: O, times: u32, kind: K, when: When) {
        self.planned()
            .faults
            .insert(op, Fault { times, kind, when });
    }

    /// Every call fails with `kind` before it reaches the other side, until [`Plan::heal`].
    pub fn outage(&self, kind: K) {
        self.planned().outage = Some(kind);
    }

    /// Every call of `op` takes this much longer, before it reaches the other side. Zero ends it.
    pub fn delay(&self, op: O, delay: Duration) {
        self.planned().delays.insert(op, delay);
    }

    /// Every answer of `op` comes this much later, after the other side did what was asked. Zero ends it.
    pub fn answer_late(&self, op: O, delay: Duration) {
        self.planned().late.insert(op, delay);
    }

    /// The next call of `op` panics before it reaches the other side.
    pub fn panic(&self, op: O) {
        self.planned().panics.insert(op);
    }

    /// Nothing fails or is late any more. Counts stay.
    pub fn heal(&self) {
        let mut planned = self.planned();
        planned.faults.clear();
        planned.delays.clear();
        planned.late.clear();
        planned.panics.clear();
        planned.outage = None;
    }

    /// How often `op` was called, failed calls included.
    pub fn count(&self, op: O) -> u64 {
        self.planned().counts.get(&op).copied().unwrap_or(0)
    }

    /// All calls of all operations, so that a test can show silence.
    pub fn total(&self) -> u64 {
        self.planned().counts.values().sum()
    }

    /// Counts the call and takes its fault, if it has one.
    ///
    /// # Panics
    /// When that is what is planned.
    pub(super) fn strike(&self, op: O) -> Strike<K> {
        let strike = self.next(op);
        assert!(!strike.panics, "injected panic in {op:?}");
        strike
    }

    fn next(&self, op: O) -> Strike<K> {
        let mut planned = self.planned();
        *planned.counts.entry(op).or_default() += 1;
        let outage = planned.outage.clone().map(|kind| Fault {
            times: 1,
            kind,
            when: When::Before,
        });
        Strike {
            delay: planned.delays.get(&op).copied().unwrap_or_default(),
            late: planned.late.get(&op).copied().unwrap_or_default(),
            panics: planned.panics.remove(&op),
            fault: outage.or_else(|| {
                let fault = planned.faults.get_mut(&op)?;
                let struck = fault.clone();
                fault.times = fault.times.checked_sub(1)?;
                Some(struck)
            }),
        }
    }

    /// Runs one call with whatever is planned for it.
    pub(super) async fn around<T, E: Injected<K>>(
        &self,
        op: O,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Strike {
            delay, late, fault, ..
        } = self.strike(op);
        pause(delay).await;
        if let Some(fault) = &fault
            && fault.when == When::Before
        {
            return Err(fault.error(op));
        }
        let answer = call.await;
        pause(late).await;
        match fault {
            Some(fault) => answer.and(Err(fault.error(op))),
            None => answer,
        }
    }
}

impl<K: Clone> Fault<K> {
    pub(super) fn error<E: Injected<K>>(&self, op: impl Debug) -> E {
        let when = match self.when {
            When::Before => "before",
            When::After => "after",
        };
        E::injected(self.kind.clone(), format!("injected fault {when} {op:?}"))
    }
}

/// Waits, unless there is nothing to wait for.
pub(super) async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
