//! Who shares the shards of a database, and how much each of them is to have.

use std::time::Duration;

/// Who wants a share of the shards, and what is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Members {
    /// How many instances.
    pub count: u32,
    /// How many of them were there before this one: whoever joins makes as few shards move as can be.
    pub before: u32,
    /// How many others are not idle.
    pub busy: u32,
    /// Shards that nobody owns, or whose lease is over.
    pub free: u16,
    /// How long the first of those has been free.
    pub free_for: Duration,
}

impl Members {
    /// Of a source that only one instance can own.
    pub const ONE: Self = Self {
        count: 1,
        before: 0,
        busy: 0,
        free: 0,
        free_for: Duration::ZERO,
    };

    /// How many of `shards` the instance should have: as many as every other one, and one more if there are some left
    /// over and it comes early enough.
    pub fn share(&self, shards: u16) -> u16 {
        let count = self.count.max(1);
        let (each, left) = (u32::from(shards) / count, u32::from(shards) % count);
        (each + u32::from(self.before < left)) as u16
    }
}
