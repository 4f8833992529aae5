//! What follows when an event was not published.
//!
//! Of a key several events may be out when one fails. Those behind it come back too, since their chain is broken,
//! and only then is it decided what becomes of the key: the first that failed decides, the others wait behind it.

use std::time::Duration;

use tracing::debug;

use super::State;
use super::decide::Decision;
use crate::actor::claimer;
use crate::actor::claimer::feed::action::{Park, Work};
use crate::actor::claimer::keys::{OrderKey, Strikes};
use crate::actor::publisher::gate;
use crate::source::Verdict;

/// Pause before an event is offered again when the publisher was not there.
const OFFER_AGAIN: Duration = Duration::from_millis(10);
/// Pause before a key is read again whose lease had no time left: it is renewed, or everything starts anew.
const NO_TIME: Duration = Duration::from_millis(250);

/// An event that was not published.
pub(super) struct Failure {
    pub(super) work: Work,
    /// What becomes of it: not [`Decision::Published`].
    pub(super) decision: Decision,
    /// What the sink had taken of all events by then.
    pub(super) successes: u64,
    /// It was asked for, and need not be offered again.
    pub(super) recalled: bool,
}

impl State {
    /// An event of a key failed: it waits for those that are out. One without a key is through with it.
    pub(super) fn failed(&mut self, mut failure: Failure) {
        let leaves_unknown = failure.decision.leaves_unknown();
        failure.work.may_be_repeat |= leaves_unknown;
        if self.run.is_halted() && leaves_unknown {
            let (epoch, feed) = (self.context.epoch, self.context.feed);
            let seq = failure.work.event.seq;
            self.tell(claimer::Message::Unanswered(epoch, feed, seq));
        }
        if self.key.is_none() {
            return self.conclude(failure);
        }
        self.run.stop();
        // Those before it may still be out, and are stored without a word.
        self.chain.ask_for_news();
        self.reconcile();
        // What still waits for a permit need not come by one to be told.
        let waiting = self.waits.and_then(|(seq, _)| self.offers.get_mut(&seq));
        waiting.and_then(Option::take);
        let seq = failure.work.event.seq;
        let earlier = self.failure.as_ref().map(|first| first.work.event.seq);
        match earlier {
            Some(first) if first < seq => self.run.again(failure.work),
            _ => {
                let later = self.failure.replace(failure);
                if let Some(later) = later {
                    self.run.again(later.work);
                }
            }
        }
    }

    /// Everything that was out is back.
    pub(super) fn take_stock(&mut self) {
        self.run.go_on();
        self.begin_chain();
        if let Some(failure) = self.failure.take() {
            self.conclude(failure);
        }
    }

    fn conclude(&mut self, failure: Failure) {
        let Failure {
            work,
            decision,
            successes,
            recalled,
        } = failure;
        let seq = work.event.seq;
        match decision {
            Decision::Published(receipt) => self.published(&work, receipt),
            Decision::Offer { pause, .. } => self.offer_again(work, recalled, pause),
            Decision::Wait {
                pause,
                strikes,
                full,
                panics,
                error,
                ..
            } => {
                debug!(event_id = %work.event.id, strikes, %error, "not taken, nothing charged");
                let strikes = Strikes {
                    count: strikes,
                    full,
                    panics,
                    successes,
                };
                self.park(seq, pause, strikes, work.may_be_repeat, false);
            }
            Decision::Retry {
                attempts,
                pause,
                error,
                ..
            } => {
                self.log_retry(&work, attempts, pause, &error);
                self.settle(
                    &work,
                    Verdict::Retried {
                        attempts,
                        retry_in: pause,
                        error,
                    },
                );
                self.park(seq, pause, Strikes::default(), work.may_be_repeat, true);
            }
            Decision::Discard {
                reason,
                code,
                attempts,
                error,
            } => {
                self.discard(&work, reason, code, attempts, error);
                if self.run.is_halted() {
                    let returned = self.run.halt();
                    self.give_back(returned);
                }
            }
        }
    }

    fn offer_again(&mut self, work: Work, recalled: bool, pause: bool) {
        let seq = work.event.seq;
        if recalled || self.run.is_halted() {
            let in_doubt =
                work.may_be_repeat || self.key.is_some() && self.run.in_doubt().is_some();
            if in_doubt {
                // Whoever reads it again has to know.
                return self.park(seq, Duration::ZERO, work.strikes, work.may_be_repeat, false);
            }
            // What waits of a key came back with it.
            let mut returned = match &self.key {
                Some(_) => self.run.halt(),
                None => Vec::new(),
            };
            returned.push(seq);
            return self.give_back(returned);
        }
        if !self.context.ownership.may_begin() {
            // Someone else may own the key now: nothing more leaves from here. If the renewal was only late,
            // the key is read again.
            return self.park(seq, NO_TIME, work.strikes, work.may_be_repeat, false);
        }
        self.run.again(work);
        let permits = &self.context.publisher.permits;
        let pause = (pause && permits.gate() == gate::State::Open).then_some(OFFER_AGAIN);
        if let Some(next) = self.run.take_next(permits.keeps_order()) {
            self.start(next, pause);
        }
    }

    /// The key (or the event without one) waits. Everything not settled goes back.
    pub(super) fn park(
        &mut self,
        seq: i64,
        pause: Duration,
        strikes: Strikes,
        repeat: bool,
        settling: bool,
    ) {
        let (mut returned, mut in_doubt) = (Vec::new(), None);
        if self.key.is_some() {
            in_doubt = self.run.in_doubt();
            returned = self.run.halt();
        }
        if !settling {
            returned.push(seq);
        }
        let park = Park {
            key: OrderKey::of(self.key.as_ref(), seq),
            head: seq,
            pause: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            settling,
            strikes,
            repeat: in_doubt.max(repeat.then_some(seq)),
            returned,
        };
        let (epoch, feed) = (self.context.epoch, self.context.feed);
        self.tell(claimer::Message::Parked(epoch, feed, park));
    }
}
