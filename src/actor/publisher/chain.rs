//! What ties together the hand-overs of one key that are out at the same time.
//!
//! A later event of a key may only be sent while nothing before it failed. But when one fails, later ones are on
//! their way to the publisher already, in mailboxes and queues. They carry the chain of the one that failed, and whoever is about
//! to send them sees that it is broken. The sequencer begins a new chain when everything of the old one has come
//! back.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// One per sequencer, from one failure to the next.
#[derive(Debug, Default)]
pub struct Chain {
    broken: AtomicBool,
    /// Accepted and not answered.
    out: AtomicU32,
    /// The session that accepted the first of them; 0: none yet.
    generation: AtomicU64,
}

impl Chain {
    /// May one more be sent through the session of this `generation`? Beside others of its key only with
    /// `together`, when that session keeps them in order. Counts it as out.
    pub fn accept(&self, generation: u64, together: bool) -> bool {
        let first =
            self.generation
                .compare_exchange(0, generation, Ordering::AcqRel, Ordering::Acquire);
        // What an earlier session has not answered yet may still come before or after.
        let same = first.map_or_else(|of| of == generation, |_| true);
        let crowded = !together && self.out.load(Ordering::Acquire) > 0;
        if self.is_broken() || !same || crowded {
            self.break_off();
            return false;
        }
        self.out.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// One that was accepted is answered.
    pub fn leave(&self) {
        self.out.fetch_sub(1, Ordering::AcqRel);
    }

    /// Nothing more of it may be sent.
    pub fn break_off(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Nothing more of it may be sent.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_only_where_order_is_kept() {
        let chain = Chain::default();
        assert!(chain.accept(7, true) && chain.accept(7, true));
        assert!(!chain.accept(7, false), "two are out");
        assert!(!chain.accept(7, true), "what follows must not overtake it");
    }

    #[test]
    fn one_after_the_other_anywhere() {
        let chain = Chain::default();
        for _ in 0..3 {
            assert!(chain.accept(7, false));
            chain.leave();
        }
    }

    #[test]
    fn a_chain_does_not_pass_from_one_session_to_the_next() {
        let chain = Chain::default();
        assert!(chain.accept(7, true));
        assert!(!chain.accept(8, true));
        assert!(chain.is_broken());
    }
}
