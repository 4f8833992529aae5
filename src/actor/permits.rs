//! Permits: the bound in front of a publisher's unbounded mailbox.
//!
//! A permit counts one event and its bytes, comes before the message, and returns when it is dropped,
//! wherever that happens. While the gate is closed nobody gets one; a probe lets one waiter through, the
//! longest waiting first, so that probes rotate over keys. Permits belong to the supervisor and outlive
//! their publisher.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::publisher::gate::State as GateState;

/// The bound of one publisher.
#[derive(Debug)]
pub struct Permits {
    events: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    max_bytes: usize,
    probes: Arc<Semaphore>,
    gate: watch::Sender<GateState>,
    successes: AtomicU64,
}

/// The right to hand one event to a publisher.
#[derive(Debug)]
pub struct Permit {
    _events: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
    probe: Option<Probe>,
}

/// The right to try a sink whose gate is not open. Unused, it goes to the next waiter.
#[derive(Debug)]
struct Probe(Option<OwnedSemaphorePermit>);

impl Drop for Probe {
    fn drop(&mut self) {
        // An unused probe: dropping the semaphore permit gives it back.
        self.0.take();
    }
}

impl Permit {
    /// The hand-over begins: a probe is used up by it.
    pub fn used(&mut self) {
        if let Some(probe) = &mut self.probe
            && let Some(permit) = probe.0.take()
        {
            permit.forget();
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
            probes: Arc::new(Semaphore::new(0)),
            gate: watch::Sender::new(GateState::Closed),
            successes: AtomicU64::new(0),
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

    /// Waits for a permit. Cancel safe: dropping the future gives everything back.
    pub async fn acquire(&self, weight: usize) -> Permit {
        loop {
            let probe = self.pass().await;
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
    async fn pass(&self) -> Option<Probe> {
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
                probe = Arc::clone(&self.probes).acquire_owned() => {
                    if let Ok(permit) = probe {
                        return Some(Probe(Some(permit)));
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
            GateState::Probing => {
                if self.probes.available_permits() == 0 {
                    self.probes.add_permits(1);
                }
            }
            GateState::Open | GateState::Closed => {
                self.probes.forget_permits(usize::MAX >> 3);
            }
        }
        self.gate.send_replace(state);
    }

    /// The gate as shown.
    pub fn gate(&self) -> GateState {
        *self.gate.borrow()
    }

    /// An event was acknowledged.
    pub fn succeeded(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
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
        tokio::time::timeout(Duration::from_millis(20), permits.acquire(weight))
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn permits_bound_events_and_bytes_and_return_when_dropped() {
        let permits = Permits::new(2, 1_000);
        permits.show(GateState::Open);
        let first = permits.acquire(400).await;
        let second = permits.acquire(400).await;
        assert!(waits(&permits, 1).await, "two events are the bound");
        drop(first);
        assert!(waits(&permits, 700).await, "400 of 1,000 bytes are taken");
        drop(second);
        let large = permits.acquire(5_000_000).await;
        assert!(
            waits(&permits, 1).await,
            "a huge event takes the whole bound"
        );
        drop(large);
        permits.acquire(1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_gate_lets_nobody_pass_and_a_probe_exactly_one() {
        let permits = Permits::new(10, 1_000);
        assert!(waits(&permits, 1).await);
        assert!(permits.try_acquire(1).is_none());
        permits.show(GateState::Probing);
        let mut probe = permits.acquire(1).await;
        probe.used();
        assert!(waits(&permits, 1).await, "one probe at a time");
        permits.show(GateState::Open);
        permits.acquire(1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_probe_goes_to_the_next() {
        let permits = Permits::new(10, 1_000);
        permits.show(GateState::Probing);
        drop(permits.acquire(1).await);
        permits.acquire(1).await;
    }
}
