//! An event on its way to the sink, and the duty to answer for it.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;

use super::chain::Chain;
use crate::actor::permits::Permit;
use crate::actor::sequencer::decide::Reply;
use crate::actor::sequencer::{self, FeedContext};
use crate::lease::Ownership;
use crate::route::Route;
use crate::sink::Delivery;

/// One event on its way to the sink.
pub struct HandOver {
    /// Event and attempt.
    pub delivery: Delivery,
    /// The feed it belongs to.
    pub context: Arc<FeedContext>,
    /// Its route.
    pub route: Arc<Route>,
    /// The bound.
    pub permit: Permit,
    /// Whom to answer.
    pub answer: Answer,
    /// Hash of the key, for the gate and the lane.
    pub key: u64,
    /// Nothing else of its key is out: it wants an answer of its own.
    pub alone: bool,
}

impl HandOver {
    /// Nothing is sent without time left on the lease.
    pub(super) fn ownership(&self) -> &Ownership {
        &self.context.ownership
    }

    /// May it be sent through the session of this generation? Otherwise it goes back.
    pub(super) fn accept(&self, generation: u64, together: bool) -> bool {
        let Some(chain) = &self.answer.chain else {
            return true;
        };
        let accepted = chain.accept(self.answer.place, generation, together);
        self.answer
            .accepted
            .store(accepted, std::sync::atomic::Ordering::Relaxed);
        accepted
    }

    /// May it share a batch with that one? A batch has the time of the lease that ends first: where one has little
    /// left, others do not share it.
    pub(super) fn goes_with(&self, other: &Self, timeout: Duration) -> bool {
        let (mine, others) = (self.ownership(), other.ownership());
        std::ptr::eq(mine, others) || mine.time_left().min(others.time_left()) >= timeout
    }

    /// May it leave now?
    pub(super) fn may_leave(&self) -> bool {
        let broken = self.answer.chain.as_ref().is_some_and(|c| c.is_broken());
        !broken && self.ownership().may_begin()
    }
}

/// The duty to answer a sequencer: dropped unanswered, it says what is known.
pub struct Answer {
    to: ActorRef<sequencer::Message>,
    seq: i64,
    /// With the events of its key that are out at the same time; `None`: it has no key.
    chain: Option<Arc<Chain>>,
    /// Place in the chain, from 0.
    place: u64,
    accepted: std::sync::atomic::AtomicBool,
    sent: bool,
    /// There is nothing to say.
    silent: bool,
    reply: Option<Reply>,
}

impl Answer {
    /// The duty to answer for `seq`, which is at this place in its chain.
    pub fn new(
        to: ActorRef<sequencer::Message>,
        seq: i64,
        chain: Option<Arc<Chain>>,
        place: u64,
    ) -> Self {
        Self {
            to,
            seq,
            chain,
            place,
            accepted: std::sync::atomic::AtomicBool::new(false),
            sent: false,
            silent: false,
            reply: None,
        }
    }

    /// From now on it may have been sent.
    pub(super) fn sent(&mut self) {
        self.sent = true;
    }

    /// It was stored, and its outcome is on its way from here: the sequencer need not hear of it.
    pub(super) fn settled(mut self) {
        let Some(chain) = self.chain.take() else {
            return;
        };
        self.silent = true;
        if chain.settled() {
            let _ = self.to.cast(sequencer::Message::Back);
        }
    }

    /// Must the sequencer hear of a success? It knows of an event without a key by its answer only.
    pub(super) fn is_awaited(&self) -> bool {
        self.chain.is_none()
    }

    /// Answers.
    pub(super) fn give(mut self, reply: Reply) {
        self.reply = Some(reply);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.silent {
            return;
        }
        let reply = self.reply.take().unwrap_or(if self.sent {
            Reply::Lost
        } else {
            Reply::NotSent
        });
        if let Some(chain) = &self.chain {
            // In this order: whoever sees the count go down sees the failure too.
            if !matches!(reply, Reply::Answered(Ok(_))) {
                chain.break_off();
            }
            if *self.accepted.get_mut() {
                chain.leave();
            }
        }
        // A sequencer that is gone needs no answer.
        let _ = self.to.cast(sequencer::Message::Answered {
            seq: self.seq,
            reply,
        });
    }
}
