//! Permits: the bound in front of a publisher's unbounded mailbox.
//!
//! A permit counts one event and its bytes, comes before the message, and returns when it is dropped,
//! wherever that happens. While the gate is closed nobody gets one; a probe lets one waiter through, so that
//! probes rotate over keys: first one whose event was not refused yet, since a thousand keys that are refused
//! for their own reasons must not stand before the one that would be taken. Permits belong to the supervisor
//! and outlive their publisher.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::publisher::gate::State as GateState;

/// The bound of one publisher.
#[derive(Debug)]
pub struct Permits {
    events: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    max_bytes: usize,
    probes: Arc<Probes>,
    gate: watch::Sender<GateState>,
    successes: AtomicU64,
    keeps_order: AtomicBool,
}

/// The right to hand one event to a publisher.
#[derive(Debug)]
pub struct Permit {
    _events: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
    probe: Option<Probe>,
}

/// Where those wait who may try a sink whose gate is not open.
#[derive(Debug)]
struct Probes {
    fresh: Arc<Semaphore>,
    tried: Arc<Semaphore>,
    /// How many wait with an event that was not refused yet.
    waiting_fresh: Mutex<usize>,
}

impl Probes {
    fn new() -> Self {
        Self {
            fresh: Arc::new(Semaphore::new(0)),
            tried: Arc::new(Semaphore::new(0)),
            waiting_fresh: Mutex::default(),
        }
    }

    fn waiting_fresh(&self) -> std::sync::MutexGuard<'_, usize> {
        self.waiting_fresh
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one waiter try, unless one may already.
    fn offer(&self) {
        let waiting = self.waiting_fresh();
        if self.fresh.available_permits() + self.tried.available_permits() > 0 {
            return;
        }
        let queue = if *waiting > 0 {
            &self.fresh
        } else {
            &self.tried
        };
        queue.add_permits(1);
    }

    fn withdraw(&self) {
        let _waiting = self.waiting_fresh();
        self.fresh.forget_permits(usize::MAX >> 3);
        self.tried.forget_permits(usize::MAX >> 3);
    }

    /// Waits for its turn. Cancel safe.
    async fn turn(self: &Arc<Self>, fresh: bool) -> Option<Probe> {
        let permit = if fresh {
            *self.waiting_fresh() += 1;
            let _waiting = WaitingFresh(self);
            tokio::select! {
                biased;
                permit = Arc::clone(&self.fresh).acquire_owned() => permit,
                permit = Arc::clone(&self.tried).acquire_owned() => permit,
            }
        } else {
            Arc::clone(&self.tried).acquire_owned().await
        };
        permit.ok()?.forget();
        Some(Probe(Some(Arc::clone(self))))
    }
}

/// Somebody waits with an event that was not refused yet.
struct WaitingFresh<'p>(&'p Probes);

impl Drop for WaitingFresh<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting_fresh();
        *waiting -= 1;
        // What was meant for the last of them is for the others.
        if *waiting == 0 && self.0.fresh.forget_permits(1) == 1 {
            self.0.tried.add_permits(1);
        }
    }
}

/// The right to try a sink whose gate is not open. Unused, it goes to the next waiter.
#[derive(Debug)]
struct Probe(Option<Arc<Probes>>);

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(probes) = self.0.take() {
            probes.offer();
        }
    }
}

impl Permit {
    /// The hand-over begins: a probe is used up by it.
    pub fn used(&mut self) {
        if let Some(probe) = &mut self.probe {
            probe.0.take();
        }
    }
}

impl Permits {
    /// Bounds of `max_events` and `max_bytes`, gate closed.
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        let max_bytes = max_bytes.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self {
            events: Arc::new(Semaphore::new(max_events.clamp(1, Semaphore::MAX_PERMITS))),
            bytes: Arc::new(Semaphore::new(max_bytes)),
            max_bytes,
            probes: Arc::new(Probes::new()),
            gate: watch::Sender::new(GateState::Closed),
            successes: AtomicU64::new(0),
            keeps_order: AtomicBool::new(false),
        }
    }

    /// A permit at once, or none: no room, a gate that is not open, or others are waiting.
    pub fn try_acquire(&self, weight: usize) -> Option<Permit> {
        if *self.gate.borrow() != GateState::Open {
            return None;
        }
        let events = Arc::clone(&self.events).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.bytes)
            .try_acquire_many_owned(self.clamp(weight))
            .ok()?;
        Some(Permit {
            _events: events,
            _bytes: bytes,
            probe: None,
        })
    }

    /// Waits for a permit. `fresh`: the event was not refused yet. Cancel safe: dropping the future gives
    /// everything back.
    pub async fn acquire(&self, weight: usize, fresh: bool) -> Permit {
        loop {
            let probe = self.pass(fresh).await;
            // The semaphores are never closed.
            let Ok(events) = Arc::clone(&self.events).acquire_owned().await else {
                std::future::pending::<()>().await;
                continue;
            };
            let Ok(bytes) = Arc::clone(&self.bytes)
                .acquire_many_owned(self.clamp(weight))
                .await
            else {
                continue;
            };
            // It may have closed while this waited for room.
            if probe.is_some() || *self.gate.borrow() == GateState::Open {
                return Permit {
                    _events: events,
                    _bytes: bytes,
                    probe,
                };
            }
        }
    }

    /// Waits at the gate: until it is open, or until this is the one that may try.
    async fn pass(&self, fresh: bool) -> Option<Probe> {
        let mut gate = self.gate.subscribe();
        loop {
            if *gate.borrow_and_update() == GateState::Open {
                return None;
            }
            tokio::select! {
                biased;
                changed = gate.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                probe = self.probes.turn(fresh) => {
                    if probe.is_some() {
                        return probe;
                    }
                }
            }
        }
    }

    /// An event larger than the bound takes the whole bound.
    fn clamp(&self, weight: usize) -> u32 {
        u32::try_from(weight.clamp(1, self.max_bytes)).unwrap_or(u32::MAX)
    }

    /// Shows the gate to those who wait. Opening ends all probes; probing lets one through.
    pub fn show(&self, state: GateState) {
        match state {
            GateState::Probing => self.probes.offer(),
            GateState::Open | GateState::Closed => self.probes.withdraw(),
        }
        self.gate.send_replace(state);
    }

    /// The gate as shown.
    pub fn gate(&self) -> GateState {
        *self.gate.borrow()
    }

    /// Does the sink keep order by itself, with several events of a key in flight?
    pub fn keep_order(&self, keeps: bool) {
        self.keeps_order.store(keeps, Ordering::Release);
    }

    /// Does the sink keep order by itself? A word of the past once it is read: the publisher makes sure.
    pub fn keeps_order(&self) -> bool {
        self.keeps_order.load(Ordering::Acquire)
    }

    /// Events were acknowledged.
    pub fn succeeded(&self, count: u64) {
        self.successes.fetch_add(count, Ordering::Relaxed);
    }

    /// Events acknowledged so far: tells whether others succeed.
    pub fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn waits(permits: &Permits, weight: usize) -> bool {
        tokio::time::timeout(Duration::from_millis(20), permits.acquire(weight, false))
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn permits_bound_events_and_bytes_and_return_when_dropped() {
        let permits = Permits::new(2, 1_000);
        permits.show(GateState::Open);
        let first = permits.acquire(400, false).await;
        let second = permits.acquire(400, false).await;
        assert!(waits(&permits, 1).await, "two events are the bound");
        drop(first);
        assert!(waits(&permits, 700).await, "400 of 1,000 bytes are taken");
        drop(second);
        let large = permits.acquire(5_000_000, false).await;
        assert!(
            waits(&permits, 1).await,
            "a huge event takes the whole bound"
        );
        drop(large);
        permits.acquire(1, false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_gate_lets_nobody_pass_and_a_probe_exactly_one() {
        let permits = Permits::new(10, 1_000);
        assert!(waits(&permits, 1).await);
        assert!(permits.try_acquire(1).is_none());
        permits.show(GateState::Probing);
        let mut probe = permits.acquire(1, false).await;
        probe.used();
        assert!(waits(&permits, 1).await, "one probe at a time");
        permits.show(GateState::Open);
        permits.acquire(1, false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_probe_goes_to_the_next() {
        let permits = Permits::new(10, 1_000);
        permits.show(GateState::Probing);
        drop(permits.acquire(1, false).await);
        permits.acquire(1, false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_goes_to_an_event_that_was_not_refused_yet() {
        let permits = Arc::new(Permits::new(10, 1_000));
        let (said, mut order) = tokio::sync::mpsc::channel(3);
        for (name, fresh) in [("tried", false), ("tried", false), ("fresh", true)] {
            let (permits, said) = (Arc::clone(&permits), said.clone());
            tokio::spawn(async move {
                let mut probe = permits.acquire(1, fresh).await;
                probe.used();
                let _ = said.send(name).await;
            });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        for expected in ["fresh", "tried", "tried"] {
            permits.show(GateState::Probing);
            assert_eq!(order.recv().await, Some(expected));
            assert!(waits(&permits, 1).await, "one probe at a time");
            permits.show(GateState::Closed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_for_one_who_goes_away_is_for_the_others() {
        let permits = Permits::new(10, 1_000);
        let mut waiting = Box::pin(permits.acquire(1, true));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        permits.show(GateState::Probing);
        drop(waiting);
        permits.acquire(1, false).await;
        // And a fresh one takes what nobody else wanted.
        let permits = Permits::new(10, 1_000);
        permits.show(GateState::Probing);
        permits.acquire(1, true).await;
    }
}
