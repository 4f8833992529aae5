//! The sequencer: one per feed and ordering key with work, and one per feed for events without a key. When its key
//! has no work for a while it rests, under the name of that key, until it is given another.
//!
//! ```text
//!   run ──head──> permit ──> publisher ──answer──> outcome ──> settler
//!    ^                                   └─ failure: the run goes back, the key is parked
//!    └── claimer delivers
//! ```
//!
//! It keeps order: the next event of a key is offered when the one before is published, or its discard is
//! committed. After a failure it is halted: everything goes back to the claimer, which reads the key again
//! when its time has come.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef};
use tracing::{debug, warn};

use self::decide::{Context, Decision, Reply, decide};
use self::run::{Order, Run};
use super::claimer;
use super::claimer::feed::action::{Park, Work};
use super::claimer::keys::{OrderKey, Strikes};
use super::handle::Task;
use super::publisher::{self, Answer, HandOver};
use super::restart::Role;
use super::tree::Place;
use crate::lease::fnv1a64;
use crate::retry::jitter;
use crate::sink::Delivery;
use crate::source::{DiscardReason, Verdict};

pub use context::FeedContext;

pub mod context;
pub mod decide;
mod report;
pub mod run;

/// Pause before an event is offered again when the publisher was not there.
const OFFER_AGAIN: Duration = Duration::from_millis(10);
/// Pause before an event is read again whose discard was not written.
const KEPT: Duration = Duration::from_secs(1);
/// Pause before a key is read again whose lease had no time left: it is renewed, or everything starts anew.
const NO_TIME: Duration = Duration::from_millis(250);

/// What a sequencer needs.
pub struct Arguments {
    /// Its feed.
    pub context: Arc<FeedContext>,
    /// Its key; `None` for events without a key.
    pub key: Option<Arc<str>>,
    /// The highest seq of the key that an earlier sequencer may have sent.
    pub floor: i64,
}

/// Messages of a sequencer.
#[derive(Debug)]
pub enum Message {
    /// Events for the run.
    Deliver(Vec<Work>),
    /// Everything of the key before is settled: serve this one from now on.
    Adopt {
        /// The key.
        key: Arc<str>,
        /// As in [`Arguments::floor`].
        floor: i64,
        /// Events for the run.
        work: Vec<Work>,
    },
    /// The publisher's answer.
    Answered {
        /// For which event.
        seq: i64,
        /// The answer.
        reply: Reply,
    },
    /// A discard was committed.
    Closed(i64),
    /// A discard was not written: the event is still there, or it is another's.
    Kept(i64),
    /// Send nothing more; give back what is not out.
    Halt,
    /// Give back what is not out, and go on with what comes later: events without a key.
    Recall,
    /// Nothing more comes: end.
    Retire,
}

#[cfg(feature = "cluster")]
impl ractor::Message for Message {}

/// State of a sequencer.
pub struct State {
    context: Arc<FeedContext>,
    myself: ActorRef<Message>,
    key: Option<Arc<str>>,
    hash: u64,
    run: Run,
    /// Offers that wait for a permit or an answer.
    offers: HashMap<i64, Option<Task>>,
    /// Those of them that go back if they were not taken.
    recalled: HashSet<i64>,
    place: Place,
}

/// The actor.
pub struct SequencerActor;

#[ractor::actor(message = Message, state = State, arguments = Arguments)]
impl SequencerActor {
    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let Arguments {
            context,
            key,
            floor,
        } = arguments;
        let name = key.as_deref().unwrap_or("(no key)").to_owned();
        let order = if key.is_some() {
            Order::Kept
        } else {
            Order::None
        };
        Ok(State {
            place: context.tree.enter(Role::Sequencer, name, myself.get_cell()),
            hash: key.as_deref().map_or(0, |key| fnv1a64(key.as_bytes())),
            run: Run::new(order, floor),
            offers: HashMap::new(),
            recalled: HashSet::new(),
            context,
            myself,
            key,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Deliver(work) => state.deliver(work),
            Message::Adopt { key, floor, work } => {
                state.adopt(key, floor);
                state.deliver(work);
            }
            Message::Answered { seq, reply } => state.answered(seq, reply),
            Message::Closed(seq) => state.closed(seq),
            Message::Kept(seq) => state.kept(seq),
            Message::Halt => state.halt(),
            Message::Recall => state.recall(),
            Message::Retire => myself.stop(None),
        }
        Ok(())
    }
}

impl State {
    /// Begins anew for another key. Nothing of the key before is out any more, so nothing is forgotten.
    fn adopt(&mut self, key: Arc<str>, floor: i64) {
        self.place.rename(&key);
        self.hash = fnv1a64(key.as_bytes());
        self.run = Run::new(Order::Kept, floor);
        self.offers.clear();
        self.recalled.clear();
        self.key = Some(key);
    }

    fn deliver(&mut self, work: Vec<Work>) {
        if self.run.is_halted() {
            return self.give_back(work.iter().map(|work| work.event.seq).collect());
        }
        let inversions = self.run.push(work);
        if inversions > 0 {
            let FeedContext {
                database,
                telemetry,
                ..
            } = &*self.context;
            telemetry.inversions(database, inversions);
            warn!(
                database = %database,
                key = self.key.as_deref().unwrap_or_default(),
                count = inversions,
                "events became visible after a later one of their key was published; gap_guard = \"hold\" prevents this"
            );
        }
        self.offer_next();
    }

    fn offer_next(&mut self) {
        while let Some(work) = self.run.take_next() {
            self.start(work, None);
        }
    }

    /// Offers an event, or sets it aside if an operator said so.
    fn start(&mut self, mut work: Work, pause: Option<Duration>) {
        let Some(words) = work.skip.take() else {
            return self.offer(work, pause);
        };
        self.run.answered(work.event.seq);
        let attempts = work.attempts;
        self.discard(
            &work,
            DiscardReason::Operator,
            None,
            attempts,
            words.as_ref().to_owned(),
        );
    }

    /// Hands one event to the publisher, as soon as there is a permit.
    fn offer(&mut self, work: Work, pause: Option<Duration>) {
        let seq = work.event.seq;
        let weight = work.event.weight();
        let permits = Arc::clone(&self.context.publisher.permits);
        let answer = Answer::new(self.myself.clone(), seq);
        let context = Arc::clone(&self.context);
        let fresh = work.attempts == 0 && work.strikes.count == 0;
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
                event: work.event,
            };
            let hand_over = HandOver {
                delivery,
                ownership: Arc::clone(&context.ownership),
                permit,
                answer,
                key,
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
            None => Some(Task::spawn(async move {
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
                send(permits.acquire(weight, fresh).await);
            })),
        };
        self.offers.insert(seq, task);
    }

    fn answered(&mut self, seq: i64, reply: Reply) {
        let Some(mut work) = self.run.answered(seq) else {
            return;
        };
        self.offers.remove(&seq);
        let recalled = self.recalled.remove(&seq);
        let successes = self.context.publisher.permits.successes();
        let others_succeed = successes > work.strikes.successes;
        let context = Context {
            policy: &work.route.retry,
            attempts: work.attempts,
            strikes: work.strikes.count,
            others_succeed,
            jitter: jitter(work.event.id, work.attempts),
        };
        let decision = decide(reply, &context);
        if self.run.is_halted() && decision.leaves_unknown() {
            let FeedContext { epoch, feed, .. } = *self.context;
            self.tell(claimer::Message::Unanswered(epoch, feed, seq));
        }
        match decision {
            Decision::Published(receipt) => self.published(&work, receipt),
            Decision::Offer { repeat } => {
                work.may_be_repeat |= repeat;
                return self.offer_again(work, recalled);
            }
            Decision::Wait {
                pause,
                strikes,
                repeat,
                error,
            } => {
                debug!(event_id = %work.event.id, strikes, %error, "not taken, nothing charged");
                let repeat = repeat || work.may_be_repeat;
                let strikes = Strikes {
                    count: strikes,
                    successes,
                };
                return self.park(&work, pause, strikes, repeat, false);
            }
            Decision::Retry {
                attempts,
                pause,
                repeat,
                error,
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
                let repeat = repeat || work.may_be_repeat;
                return self.park(&work, pause, Strikes::default(), repeat, true);
            }
            Decision::Discard {
                reason,
                code,
                attempts,
                error,
            } => {
                self.discard(&work, reason, code, attempts, error);
            }
        }
        self.offer_next();
    }

    fn offer_again(&mut self, work: Work, recalled: bool) {
        let seq = work.event.seq;
        if recalled || self.run.is_halted() {
            if work.may_be_repeat {
                // Whoever reads it again has to know.
                let strikes = work.strikes;
                return self.park(&work, Duration::ZERO, strikes, true, false);
            }
            return self.give_back(vec![seq]);
        }
        if !self.context.ownership.may_begin() {
            // Someone else may own the key now: nothing more leaves from here. If the renewal was only late,
            // the key is read again.
            let (strikes, repeat) = (work.strikes, work.may_be_repeat);
            return self.park(&work, NO_TIME, strikes, repeat, false);
        }
        self.run.again(work);
        let pause = (self.context.publisher.permits.gate() == publisher::gate::State::Open)
            .then_some(OFFER_AGAIN);
        while let Some(work) = self.run.take_next() {
            self.start(work, pause);
        }
    }

    /// The key (or the event without one) waits. Everything not settled goes back.
    fn park(
        &mut self,
        work: &Work,
        pause: Duration,
        strikes: Strikes,
        repeat: bool,
        settling: bool,
    ) {
        self.park_at(work.event.seq, pause, strikes, repeat, settling);
    }

    fn park_at(
        &mut self,
        seq: i64,
        pause: Duration,
        strikes: Strikes,
        repeat: bool,
        settling: bool,
    ) {
        let mut returned = Vec::new();
        if self.key.is_some() {
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
            repeat,
            returned,
        };
        self.tell(claimer::Message::Parked(
            self.context.epoch,
            self.context.feed,
            park,
        ));
    }

    fn closed(&mut self, seq: i64) {
        self.run.closed(seq);
        self.offer_next();
    }

    /// Nothing may follow an event whose discard was not written: the key is read again from the table.
    fn kept(&mut self, seq: i64) {
        self.run.closed(seq);
        self.park_at(seq, KEPT, Strikes::default(), true, false);
    }

    fn halt(&mut self) {
        let returned = self.run.halt();
        self.give_back(returned);
        // Offers that still wait for a permit end as "not sent" and come back one by one.
        for task in self.offers.values_mut() {
            task.take();
        }
    }

    /// Without an order nothing waits for anything, so there is no run to halt.
    fn recall(&mut self) {
        self.recalled.extend(self.offers.keys());
        for task in self.offers.values_mut() {
            task.take();
        }
    }

    fn give_back(&self, seqs: Vec<i64>) {
        if !seqs.is_empty() {
            self.tell(claimer::Message::Returned(
                self.context.epoch,
                self.context.feed,
                seqs,
            ));
        }
    }

    fn tell(&self, message: claimer::Message) {
        // A claimer that is gone takes its sequencers with it.
        let _ = self.context.claimer.cast(message);
    }
}
