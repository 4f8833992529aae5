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
//! committed. Where the sink keeps order by itself ([`Session::lanes`](crate::sink::Session::lanes)) several are
//! out at once; when one of them fails nothing goes out before all have come back (`failure`). After a failure it
//! is halted: everything goes back to the claimer, which reads the key again when its time has come.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef};
use tracing::warn;

use self::decide::{Context, Decision, Reply, decide};
use self::failure::Failure;
use self::run::{Next, Order, Run};
use super::claimer;
use super::claimer::feed::action::{Aside, Work};
use super::claimer::keys::Strikes;
use super::handle::Task;
use super::publisher::chain::Chain;
use super::restart::Role;
use super::tree::Place;
use crate::lease::fnv1a64;
use crate::retry::jitter;

pub use context::FeedContext;

pub mod context;
pub mod decide;
mod failure;
mod offer;
mod report;
pub mod run;

/// Pause before an event is read again whose discard was not written.
const KEPT: Duration = Duration::from_secs(1);

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
    /// The offer of this number has its permit and was made.
    Offered(u64),
    /// Everything of the key that was out was stored.
    Back,
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
    /// What ties together the events of the key that are out.
    chain: Arc<Chain>,
    /// How many were offered in the chain.
    offered: u64,
    /// How many of the chain's stored ones are taken out of the run.
    heard: u64,
    /// The event of the key that waits for a permit, and the number of its offer: nothing is offered before it.
    waits: Option<(i64, u64)>,
    /// Numbers offers, since one event may be offered again before a word about an earlier offer has arrived.
    last_offer: u64,
    /// What failed first, by seq, while others are out still.
    failure: Option<Failure>,
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
            chain: Arc::default(),
            offered: 0,
            heard: 0,
            waits: None,
            last_offer: 0,
            failure: None,
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
        state.reconcile();
        match message {
            Message::Deliver(work) => state.deliver(work),
            Message::Adopt { key, floor, work } => {
                state.adopt(key, floor);
                state.deliver(work);
            }
            Message::Answered { seq, reply } => state.answered(seq, reply),
            Message::Offered(number) => state.offered(number),
            Message::Back => state.back(),
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
        self.begin_chain();
        self.waits = None;
        self.failure = None;
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
        loop {
            while self.waits.is_none()
                && let Some(next) = self
                    .run
                    .take_next(self.context.publisher.permits.keeps_order())
            {
                self.start(next, None);
            }
            if !self.run.waits_for_others() {
                return;
            }
            self.chain.ask_for_news();
            let heard = self.heard;
            self.reconcile();
            if heard == self.heard {
                return;
            }
        }
    }

    fn begin_chain(&mut self) {
        self.chain = Arc::default();
        (self.offered, self.heard) = (0, 0);
    }

    /// Offers an event, or sets it aside if it is not to be sent.
    fn start(&mut self, mut next: Next, pause: Option<Duration>) {
        let Some(Aside { reason, words }) = next.work.skip.take() else {
            return self.offer(next, pause);
        };
        let work = next.work;
        self.run.answered(work.event.seq);
        let attempts = work.attempts;
        self.discard(&work, reason, None, attempts, words.as_ref().to_owned());
    }

    fn answered(&mut self, seq: i64, reply: Reply) {
        let Some(work) = self.run.answered(seq) else {
            return;
        };
        self.offers.remove(&seq);
        let recalled = self.recalled.remove(&seq);
        self.waits.take_if(|(waiting, _)| *waiting == seq);
        let successes = self.context.publisher.permits.successes();
        let context = Context {
            policy: &work.route.retry,
            attempts: work.attempts,
            strikes: work.strikes.count,
            full: work.strikes.full,
            panics: work.strikes.panics,
            others_succeed: successes > work.strikes.successes,
            jitter: jitter(work.event.id, work.attempts),
        };
        match decide(reply, &context) {
            Decision::Published(receipt) => {
                if work.may_be_repeat && !receipt.duplicate {
                    self.run.was_new();
                }
                self.published(&work, receipt);
            }
            decision => self.failed(Failure {
                work,
                decision,
                successes,
                recalled,
            }),
        }
        self.back();
    }

    /// Something came back: perhaps everything has.
    fn back(&mut self) {
        if self.run.is_stopped() && self.run.is_back() {
            self.take_stock();
        }
        self.offer_next();
    }

    fn closed(&mut self, seq: i64) {
        self.run.closed(seq);
        self.offer_next();
    }

    /// Nothing may follow an event whose discard was not written: the key is read again from the table.
    fn kept(&mut self, seq: i64) {
        self.run.closed(seq);
        self.park(seq, KEPT, Strikes::default(), true, false);
    }

    fn halt(&mut self) {
        let returned = self.run.halt();
        self.give_back(returned);
        // What waits in the publisher's queues, or for a permit, ends as "not sent" and comes back one by one.
        self.chain.break_off();
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
