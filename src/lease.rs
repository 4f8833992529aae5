//! Ownership of shards: the hash that assigns keys, and how long an instance may trust its lease.
//!
//! A lease is taken, renewed and judged by the database's clock alone. What lives here is the owner's
//! side: a deadline that is earlier than the database's, so that an owner stops before anyone else may
//! start.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Name of the hash that assigns an ordering key to a shard, stored in the lease table and checked at start.
pub const SHARD_ALGORITHM: &str = "fnv1a64";

/// How much earlier than the database an owner stops trusting its lease.
pub const SAFETY_MARGIN: Duration = Duration::from_secs(2);

/// A hand-over is not begun with less time left than this: it would hardly get its answer.
const WORTH_BEGINNING: Duration = Duration::from_millis(100);

/// The shard of an event: FNV-1a (64 bit) of the ordering key's bytes, or of the seq's eight big-endian
/// bytes for an event without a key, modulo the number of shards.
///
/// Source of the formula: <http://www.isthe.com/chongo/tech/comp/fnv/>, offset basis and prime for 64 bits.
pub fn shard_of(ordering_key: Option<&str>, seq: i64, shards: u16) -> u16 {
    let hash = match ordering_key {
        Some(key) => fnv1a64(key.as_bytes()),
        None => fnv1a64(&seq.to_be_bytes()),
    };
    (hash % u64::from(shards.max(1))) as u16
}

/// FNV-1a, 64 bit.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
    })
}

/// One shard held by a claimer incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Which slice of the keys.
    pub shard: u16,
    /// Fences: grows by one with every acquisition of the shard, from 0 on.
    pub token: i64,
}

impl Lease {
    /// Nobody held the shard before.
    pub fn is_first(&self) -> bool {
        self.token == 1
    }
}

/// Which shards somebody owns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owned {
    shards: Vec<bool>,
    all: bool,
}

impl Owned {
    /// Every shard.
    pub fn all() -> Self {
        Self {
            shards: Vec::new(),
            all: true,
        }
    }

    /// Is this event in an owned shard?
    pub fn includes(&self, ordering_key: Option<&str>, seq: i64) -> bool {
        if self.all {
            return true;
        }
        let shard = shard_of(ordering_key, seq, self.shards.len() as u16);
        self.shards.get(usize::from(shard)).copied() == Some(true)
    }
}

/// What a claimer incarnation owns, shared with everyone who acts in its name.
///
/// The deadline is counted by a clock that also runs while the machine sleeps, from before the renewal
/// was sent. After [`Ownership::revoke`] nothing may be sent under these tokens, whatever the deadline says.
#[derive(Debug)]
pub struct Ownership {
    tokens: Vec<Option<i64>>,
    deadline_ms: AtomicU64,
    revoked: AtomicBool,
    /// It is about to be given up.
    closing: AtomicBool,
}

impl Ownership {
    /// Ownership of `leases` out of `shards`, valid until `deadline`.
    pub fn new(shards: u16, leases: &[Lease], deadline: Deadline) -> Self {
        let mut tokens = vec![None; usize::from(shards)];
        for lease in leases {
            if let Some(slot) = tokens.get_mut(usize::from(lease.shard)) {
                *slot = Some(lease.token);
            }
        }
        Self {
            tokens,
            deadline_ms: AtomicU64::new(deadline.0),
            revoked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    /// Number of shards of the database.
    pub fn shards(&self) -> u16 {
        self.tokens.len() as u16
    }

    /// Which shards those are.
    pub fn owned(&self) -> Owned {
        Owned {
            shards: self.tokens.iter().map(Option::is_some).collect(),
            all: self.tokens.iter().all(Option::is_some),
        }
    }

    /// The leases held.
    pub fn leases(&self) -> Vec<Lease> {
        self.tokens
            .iter()
            .enumerate()
            .filter_map(|(shard, token)| {
                token.map(|token| Lease {
                    shard: shard as u16,
                    token,
                })
            })
            .collect()
    }

    /// The token for `shard`, if it is held.
    pub fn token(&self, shard: u16) -> Option<i64> {
        self.tokens.get(usize::from(shard)).copied().flatten()
    }

    /// The lease that an outcome of this event is written under. Of a shard that is not held, with a token that
    /// no lease has: the outcome is then fenced.
    pub fn lease_for(&self, ordering_key: Option<&str>, seq: i64) -> Lease {
        let shard = shard_of(ordering_key, seq, self.shards());
        Lease {
            shard,
            token: self.token(shard).unwrap_or(-1),
        }
    }

    /// Moves the deadline after a renewal.
    pub fn extend(&self, deadline: Deadline) {
        self.deadline_ms.fetch_max(deadline.0, Ordering::AcqRel);
    }

    /// Ends ownership for good: the incarnation is gone or lost a lease.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// It will be given up: no hand-over begins any more, those under way may end.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// May a hand-over begin?
    pub fn may_begin(&self) -> bool {
        !self.closing.load(Ordering::Acquire) && self.time_left() >= WORTH_BEGINNING
    }

    /// How long sending is still allowed; zero when it is not.
    pub fn time_left(&self) -> Duration {
        if self.revoked.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let now = Deadline::now().0;
        Duration::from_millis(self.deadline_ms.load(Ordering::Acquire).saturating_sub(now))
    }
}

/// A moment on the clock that also runs during suspend (`CLOCK_BOOTTIME`), in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(u64);

impl Deadline {
    /// The present moment.
    pub fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(clock);
        Self(now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000)
    }

    /// The moment until which a lease of `ttl` may be trusted when its renewal is sent at `self`.
    pub fn trusting(self, ttl: Duration) -> Self {
        self.after(ttl.saturating_sub(margin(ttl)))
    }

    /// `span` later.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.as_millis() as u64))
    }
}

/// Two seconds, or a quarter of a lease too short for that.
fn margin(ttl: Duration) -> Duration {
    SAFETY_MARGIN.min(ttl / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_fnv1a() {
        // Test vectors from the FNV reference page.
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn keys_and_keyless_events_spread_over_all_shards() {
        let mut seen = [0_u32; 16];
        for seq in 0..1_000 {
            seen[usize::from(shard_of(None, seq, 16))] += 1;
            seen[usize::from(shard_of(Some(&format!("key-{seq}")), 0, 16))] += 1;
        }
        assert!(seen.iter().all(|count| *count > 60), "{seen:?}");
    }

    #[test]
    fn an_event_is_owned_with_its_shard() {
        let lease = Lease { shard: 3, token: 9 };
        let part = Ownership::new(16, &[lease], Deadline::now()).owned();
        for seq in 0..1_000 {
            let owned = shard_of(Some("key"), seq, 16) == 3;
            assert_eq!(part.includes(Some("key"), seq), owned);
            assert_eq!(part.includes(None, seq), shard_of(None, seq, 16) == 3);
            assert!(Owned::all().includes(None, seq));
        }
    }

    #[test]
    fn trust_ends_before_the_lease_and_with_revocation() {
        let now = Deadline::now();
        let lease = Lease { shard: 3, token: 9 };
        let owned = Ownership::new(16, &[lease], now.trusting(Duration::from_secs(15)));
        assert!(owned.time_left() <= Duration::from_secs(13));
        assert!(owned.time_left() > Duration::from_secs(12));
        assert_eq!(owned.token(3), Some(9));
        assert_eq!(owned.token(4), None);
        assert!(owned.may_begin());
        let late = Ownership::new(16, &[lease], now.after(WORTH_BEGINNING / 2));
        assert!(!late.may_begin());
        owned.close();
        assert!(!owned.may_begin() && !owned.time_left().is_zero());
        owned.revoke();
        owned.extend(now.trusting(Duration::from_secs(60)));
        assert_eq!(owned.time_left(), Duration::ZERO);
    }
}
