//! How often a failed event is tried again, and when.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What happens to an event whose attempts are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub enum OnExhausted {
    /// It is discarded and its key moves on.
    #[default]
    Discard,
    /// Its key stays parked until an operator decides.
    Block,
}

/// The retry rule of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Charged failures after which the event is exhausted. Default 50.
    pub max_attempts: u32,
    /// Pause after the first charged failure; doubles with each further one. Default 2 s.
    pub base: Duration,
    /// Longest pause. Default 256 s.
    pub max: Duration,
    /// What follows the last attempt.
    pub on_exhausted: OnExhausted,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 50,
            base: Duration::from_secs(2),
            max: Duration::from_secs(256),
            on_exhausted: OnExhausted::Discard,
        }
    }
}

impl Policy {
    /// The pause after charged failure number `attempts` (from 1), lengthened by up to a quarter according to
    /// `jitter` (0.0 to 1.0), so that keys that failed together do not come back together.
    pub fn pause(&self, attempts: u32, jitter: f64) -> Duration {
        back_off(self.base, self.max, attempts, jitter)
    }

    /// Is an event with this many charged failures used up?
    pub fn exhausted(&self, attempts: u32) -> bool {
        attempts >= self.max_attempts
    }
}

/// `base` × 2^(`failures` − 1), at most `max`, lengthened by up to a quarter by `jitter` (0.0 to 1.0).
pub fn back_off(base: Duration, max: Duration, failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    let pause = base.saturating_mul(1_u32 << doublings).min(max);
    pause + pause.mul_f64(jitter.clamp(0.0, 1.0) / 4.0)
}

/// A number in 0.0 to 1.0 that spreads well and needs no generator: the caller passes something that
/// differs from event to event (the id) and from attempt to attempt.
pub fn jitter(id: uuid::Uuid, attempts: u32) -> f64 {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(id.as_bytes());
    bytes[16..].copy_from_slice(&attempts.to_be_bytes());
    // FNV's high bits spread poorly over short inputs; one multiplicative finish mixes them.
    let hash = crate::lease::fnv1a64(&bytes).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_base_to_max() {
        let policy = Policy::default();
        let seconds: Vec<u64> = [1, 2, 3, 7, 8, 9, 50, u32::MAX]
            .iter()
            .map(|n| policy.pause(*n, 0.0).as_secs())
            .collect();
        assert_eq!(seconds, [2, 4, 8, 128, 256, 256, 256, 256]);
    }

    #[test]
    fn jitter_lengthens_by_at_most_a_quarter_and_differs() {
        let policy = Policy::default();
        assert_eq!(policy.pause(3, 1.0), Duration::from_secs(10));
        let id = uuid::Uuid::from_u128(7);
        let values: Vec<f64> = (0..100).map(|n| jitter(id, n)).collect();
        assert!(values.iter().all(|v| (0.0..1.0).contains(v)));
        assert!(values.iter().any(|v| *v < 0.2) && values.iter().any(|v| *v > 0.8));
    }

    #[test]
    fn exhaustion_is_counted_in_charged_failures() {
        let policy = Policy {
            max_attempts: 3,
            ..Policy::default()
        };
        assert!(!policy.exhausted(2));
        assert!(policy.exhausted(3));
    }
}
