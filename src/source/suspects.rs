//! What is known of events that may have killed their owner.
//!
//! While an owner works with care it notes in the leases what is in hand, so that whoever takes over from it knows, should
//! it die. One that ends in an orderly way leaves no note.

use crate::lease::Lease;

/// A shard whose last owners died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspects {
    /// The shard, under its present token.
    pub lease: Lease,
    /// 1: an owner died, and nothing is known of what it had in hand. 2: the next one died too, with `seqs` in hand.
    /// 3: and one more, with only that one in hand.
    pub deaths: u32,
    /// What the last of them had noted.
    pub seqs: Vec<i64>,
}

/// What is in hand of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InHand {
    /// The shard. Where the token no longer holds, nothing is noted.
    pub lease: Lease,
    /// The events.
    pub seqs: Vec<i64>,
}
