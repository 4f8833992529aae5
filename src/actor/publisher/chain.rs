//! What ties together the hand-overs of one key that are out at the same time.
//!
//! A later event of a key may only be sent while nothing before it failed. But when one fails, later ones are on
//! their way to the publisher already, in mailboxes and queues. They carry the chain of the one that failed, and whoever is about
//! to send them sees that it is broken. The sequencer begins a new chain when everything of the old one has come
//! back.
//!
//! What was stored in a lane is settled by the publisher, and only counted here: the sequencer need not hear of each,
//! since they are always the first of those that are out. For that, none of them
//! may be answered otherwise. It asks for news when it waits for them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// One per sequencer, from one failure to the next.
#[derive(Debug, Default)]
pub struct Chain {
    broken: AtomicBool,
    /// How many were accepted: the place of the next.
    accepted: AtomicU64,
    /// Accepted and not answered.
    out: AtomicU32,
    /// The session that accepted the first of them; 0: none yet.
    generation: AtomicU64,
    /// Stored and settled without a word to the sequencer.
    stored: AtomicU64,
    /// The sequencer wants to hear when nothing is out any more.
    news: AtomicBool,
}

impl Chain {
    /// May the one at this `place` (from 0) be sent through the session of this `generation`? Beside others of its key
    /// only with `together`, when that session keeps them in order. Counts it as out.
    ///
    /// One whose predecessor never arrived may not: a publisher may have died with it in its mailbox.
    pub fn accept(&self, place: u64, generation: u64, together: bool) -> bool {
        let first =
            self.generation
                .compare_exchange(0, generation, Ordering::SeqCst, Ordering::SeqCst);
        // What an earlier session has not answered yet may still come before or after.
        let same = first.map_or_else(|of| of == generation, |_| true);
        let crowded = !together && self.out.load(Ordering::SeqCst) > 0;
        let next = self.accepted.load(Ordering::SeqCst) == place;
        if self.is_broken() || !same || crowded || !next {
            self.break_off();
            return false;
        }
        self.accepted.store(place + 1, Ordering::SeqCst);
        self.out.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// One that was accepted is answered.
    pub fn leave(&self) {
        self.out.fetch_sub(1, Ordering::SeqCst);
    }

    /// One was stored and goes to the settler from here. True: it was the last that was out, and the sequencer wants to
    /// hear of it.
    pub fn settled(&self) -> bool {
        self.stored.fetch_add(1, Ordering::SeqCst);
        let last = self.out.fetch_sub(1, Ordering::SeqCst) == 1;
        last && self.news.swap(false, Ordering::SeqCst)
    }

    /// How many were stored so far without a word.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::SeqCst)
    }

    /// From now on the sequencer wants to hear when nothing is out any more.
    pub fn ask_for_news(&self) {
        self.news.store(true, Ordering::SeqCst);
    }

    /// Nothing more of it may be sent.
    pub fn break_off(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Nothing more of it may be sent.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_only_where_order_is_kept() {
        let chain = Chain::default();
        assert!(chain.accept(0, 7, true) && chain.accept(1, 7, true));
        assert!(!chain.accept(2, 7, false), "two are out");
        assert!(
            !chain.accept(3, 7, true),
            "what follows must not overtake it"
        );
    }

    #[test]
    fn one_after_the_other_anywhere() {
        let chain = Chain::default();
        for place in 0..3 {
            assert!(chain.accept(place, 7, false));
            chain.leave();
        }
    }

    #[test]
    fn none_overtakes_one_that_got_lost_on_the_way_to_its_publisher() {
        let chain = Chain::default();
        assert!(!chain.accept(1, 8, true), "0 is in the mailbox of another");
        assert!(!chain.accept(0, 8, true));
    }

    #[test]
    fn the_last_that_is_stored_brings_the_news_that_were_asked_for() {
        let chain = Chain::default();
        assert!(chain.accept(0, 7, true) && chain.accept(1, 7, true));
        assert!(!chain.settled());
        chain.ask_for_news();
        assert!(chain.settled());
        assert_eq!(chain.stored(), 2);
        assert!(chain.accept(2, 7, true));
        assert!(!chain.settled(), "nobody asked again");
    }

    #[test]
    fn a_chain_does_not_pass_from_one_session_to_the_next() {
        let chain = Chain::default();
        assert!(chain.accept(0, 7, true));
        assert!(!chain.accept(1, 8, true));
        assert!(chain.is_broken());
    }
}
