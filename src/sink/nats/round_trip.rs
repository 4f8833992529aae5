//! How long the stream takes to answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time of an answer, as lately heard: a slower answer counts at once, quicker ones by and by.
#[derive(Debug)]
pub(super) struct RoundTrip(AtomicU64);

impl RoundTrip {
    /// As first heard.
    pub(super) fn new(first: Duration) -> Self {
        Self(AtomicU64::new(micros(first)))
    }

    /// An answer took so long.
    pub(super) fn heard(&self, took: Duration) {
        let took = micros(took);
        // One of several at once may get lost: it is an estimate.
        let before = self.0.load(Ordering::Relaxed);
        let after = took.max(before - before / 8);
        self.0.store(after, Ordering::Relaxed);
    }

    /// What to reckon with.
    pub(super) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_at_once_and_shrinks_slowly() {
        let ms = Duration::from_millis;
        let round_trip = RoundTrip::new(ms(1));
        round_trip.heard(ms(100));
        assert_eq!(round_trip.get(), ms(100));
        round_trip.heard(ms(1));
        assert!(round_trip.get() > ms(80));
        for _ in 0..100 {
            round_trip.heard(ms(1));
        }
        assert!(round_trip.get() <= ms(1));
    }
}
