//! Offering an event to the publisher: permit first.

use std::sync::Arc;
use std::time::Duration;

use super::run::Next;
use super::{Message, State};
use crate::actor::handle::Task;
use crate::actor::publisher;
use crate::actor::publisher::hand_over::{Answer, HandOver};
use crate::lease::fnv1a64;
use crate::sink::Delivery;

impl State {
    /// Hands one event to the publisher, as soon as there is a permit.
    ///
    /// Events of a key are offered in their order: while one waits for its permit, none behind it is offered.
    pub(super) fn offer(&mut self, next: Next, pause: Option<Duration>) {
        let Next { work, alone } = next;
        let seq = work.event.seq;
        let weight = work.event.weight();
        let permits = Arc::clone(&self.context.publisher.permits);
        let chain = self.key.is_some().then(|| Arc::clone(&self.chain));
        let answer = Answer::new(self.myself.clone(), seq, chain, self.offered);
        self.offered += 1;
        let context = Arc::clone(&self.context);
        let fresh = work.attempts == 0 && !work.strikes.any();
        let key = if self.key.is_some() {
            self.hash
        } else {
            fnv1a64(&seq.to_be_bytes())
        };
        let send = move |permit| {
            let delivery = Delivery {
                source: Arc::clone(&context.database),
                attempt: work.attempts.saturating_add(1),
                may_be_repeat: work.may_be_repeat,
                lease: context
                    .ownership
                    .lease_for(work.event.ordering_key.as_deref(), seq),
                event: work.event,
            };
            let hand_over = HandOver {
                delivery,
                route: work.route,
                context: Arc::clone(&context),
                permit,
                answer,
                key,
                alone,
            };
            // Nobody there: the message is dropped, and with it the answer says "not sent".
            context
                .publisher
                .handle
                .send(publisher::Message::Publish(hand_over));
        };
        let at_once = match pause {
            None => permits.try_acquire(weight),
            Some(_) => None,
        };
        let task = match at_once {
            Some(permit) => {
                send(permit);
                None
            }
            None => {
                self.last_offer += 1;
                let number = self.last_offer;
                self.waits = self.key.is_some().then_some((seq, number));
                let myself = self.myself.clone();
                Some(Task::spawn(async move {
                    if let Some(pause) = pause {
                        tokio::time::sleep(pause).await;
                    }
                    send(permits.acquire(weight, fresh).await);
                    let _ = myself.cast(Message::Offered(number));
                }))
            }
        };
        // Of a key only what still waits can be called back.
        if task.is_some() || self.key.is_none() {
            self.offers.insert(seq, task);
        }
    }

    /// Takes out what was stored without a word.
    pub(super) fn reconcile(&mut self) {
        let stored = self.chain.stored();
        while self.heard < stored {
            self.heard += 1;
            if let Some(seq) = self.run.stored_first() {
                self.offers.remove(&seq);
                self.waits.take_if(|(waiting, _)| *waiting == seq);
            }
        }
    }

    /// The event that waited for its permit was offered: the next may be.
    pub(super) fn offered(&mut self, number: u64) {
        // It may have been stored meanwhile, and then it waits no longer.
        self.waits.take_if(|(_, waiting)| *waiting == number);
        self.offer_next();
    }
}
