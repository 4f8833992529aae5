//! The claimer: one per database. Owns the shards, reads the outbox forward, and gives each key its events.
//!
//! ```text
//!   opening ──leases──> active ──nothing for long──> quiet
//!      │ ^                │  ^                          │ wake-up
//!      │ └─── reset ──────┘  └──────── opening <────────┘
//!      └──none free──> standby ──> opening
//! ```
//!
//! A reset throws away everything in memory and starts again from the table, under fresh tokens: after a
//! lost lease, a restore or a failover. Reads and looks run as tasks beside the actor, so that it stays
//! responsive; what they bring carries the epoch, and an older epoch's answer is dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use self::active::Active;
use self::feed::action::Park;
pub use self::message::{Look, LookedInto, Message, Pair, Seen};
use super::database;
use super::handle::{Handle, Task};
use super::keeper;
use super::publisher::Publisher;
use super::restart::Role;
use super::settler::{self, Settled};
use super::tree::{Place, Tree};
use crate::lease::Lease;
use crate::relay::GapGuard;
use crate::route::Routes;
use crate::source::Source;
use crate::status::Board;
use crate::telemetry::Telemetry;

pub mod active;
pub mod budget;
pub mod cancelling;
pub mod care;
pub mod cursor;
pub mod draining;
pub mod feed;
pub mod gaps;
pub mod hands;
pub mod hearing;
pub mod history;
pub mod holding;
pub mod holds;
pub mod keys;
mod message;
pub mod opening;
pub mod parked;
pub mod pulse;
pub mod reading;
pub mod recent;
mod resting;
pub mod sharing;
mod showing;
pub mod unrouted;
pub mod waking;
pub mod walking;

/// What a claimer needs.
#[derive(Clone)]
pub struct Arguments {
    /// The database's name.
    pub database: Arc<str>,
    /// The database.
    pub source: Arc<dyn Source>,
    /// The sinks, each the other end of a feed.
    pub sinks: Vec<(Arc<str>, Publisher)>,
    /// Kinds to sinks.
    pub routes: Routes,
    /// Settings.
    pub settings: Settings,
    /// Where outcomes go.
    pub settler: Handle<settler::Message>,
    /// Housekeeping, which rests when the database is quiet.
    pub keeper: Handle<keeper::Message>,
    /// The parent, told when a drain is over.
    pub parent: ActorRef<database::Message>,
    /// True while everything due is delivered.
    pub caught_up: watch::Sender<bool>,
    /// What is shown.
    pub board: Arc<Board>,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Where the actor is entered.
    pub tree: Tree,
}

/// Settings of a claimer.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This instance.
    pub instance: Uuid,
    /// Length of a lease.
    pub ttl: Duration,
    /// What reading does about gaps.
    pub guard: GapGuard,
    /// Longest pause between polls without a wake-up channel.
    pub poll_max: Duration,
    /// Longest pause beside an open channel.
    pub fallback: Duration,
    /// Silence after which everything but the channel stops.
    pub quiet_after: Option<Duration>,
    /// Events held, per feed.
    pub budget_events: usize,
    /// Bytes held, per feed.
    pub budget_bytes: usize,
    /// Keys parked in memory, per feed.
    pub max_parked: usize,
}

/// State of a claimer.
pub struct State {
    arguments: Arguments,
    myself: ActorRef<Message>,
    born: Instant,
    /// Counts incarnations of the state below.
    epoch: u64,
    phase: Phase,
    failures: u32,
    listener: Option<Task>,
    /// The channel was lost, and another will be opened in its place.
    channel_lost: bool,
    channel_open: bool,
    /// A wake-up is in the mailbox already.
    wake_pending: Arc<AtomicBool>,
    /// No statements, please.
    quiet: Arc<AtomicBool>,
    next_tag: u64,
    tags: HashMap<u64, Tag>,
    tasks: Vec<Task>,
    departure: Option<Task>,
    drains: u64,
    /// Leases that are still this instance's while it opens again for another share.
    kept: Vec<Lease>,
    /// An opening has freed what an earlier incarnation had.
    buried: bool,
    /// What the next opening is for.
    aim: sharing::Aim,
    /// Messages that wait for a note.
    waiting: VecDeque<Message>,
    _place: Place,
}

/// What a flush of the settler was asked for.
enum Tag {
    Open(u64),
    Orphan(u64, usize, Option<Arc<str>>),
    Cancelled(u64),
    Drained,
}

enum Phase {
    Opening,
    Standby,
    Active(Box<Active>),
    Quiet,
    Draining(draining::Draining),
}

/// The actor.
pub struct ClaimerActor;

#[ractor::actor(message = Message, state = State, arguments = Arguments)]
impl ClaimerActor {
    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let name = arguments.database.to_string();
        let mut state = State {
            _place: arguments.tree.enter(Role::Claimer, name, myself.get_cell()),
            arguments,
            myself,
            born: Instant::now(),
            epoch: 0,
            phase: Phase::Opening,
            failures: 0,
            listener: None,
            channel_lost: false,
            channel_open: false,
            wake_pending: Arc::new(AtomicBool::new(false)),
            quiet: Arc::new(AtomicBool::new(false)),
            next_tag: 0,
            tags: HashMap::new(),
            tasks: Vec::new(),
            departure: None,
            drains: 0,
            kept: Vec::new(),
            buried: false,
            aim: sharing::Aim::default(),
            waiting: VecDeque::new(),
        };
        state.flush_and_open();
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.take(message).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                let reason = reason.unwrap_or_else(|| "stopped".into());
                state.take(Message::Ended(cell, reason)).await;
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                state.take(Message::Ended(cell, error.to_string())).await;
            }
            _ => {}
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<Message>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.revoke();
        let limit = Some(Duration::from_millis(500));
        myself.stop_children_and_wait(None, limit).await;
        Ok(())
    }
}

impl State {
    /// Takes a message, and what had to wait before it. While the leases are told what is about to be handed over, what
    /// concerns events waits, as if it had been handed over at once.
    async fn take(&mut self, message: Message) {
        self.waiting.push_back(message);
        while let Some(message) = self.next_message() {
            self.act(message).await;
            self.hand_out().await;
        }
    }

    fn next_message(&mut self) -> Option<Message> {
        let noting = matches!(&self.phase, Phase::Active(active) if active.is_noting());
        let may = |message: &Message| !(noting && message.concerns_events());
        let place = self.waiting.iter().position(may)?;
        self.waiting.remove(place)
    }

    async fn act(&mut self, message: Message) {
        match message {
            Message::Open(epoch) => self.open(epoch),
            Message::Opened(epoch, result) => self.opened(epoch, result),
            Message::Renewed(epoch, sent, result) => self.renewed(epoch, sent, result),
            Message::Members(epoch, members) => self.told(epoch, members),
            Message::Tick(epoch) => self.tick(epoch),
            Message::Wake => self.wake(),
            Message::Listening(open) => self.listening(open),
            Message::Marked(epoch, set) => self.with(epoch, |active, now| active.marked(set, now)),
            Message::Read(epoch, feed, read, plan, result) => {
                self.with(epoch, |active, now| {
                    active.read_done(feed, read, &plan, result, now)
                });
            }
            Message::CaughtUp(epoch, feed, read, plan, result) => {
                self.with(epoch, |active, now| {
                    active.caught_up(feed, read, &plan, result, now);
                })
            }
            Message::Fetched(epoch, feed, read, seqs, origin, result) => {
                self.with(epoch, |active, now| {
                    active.fetched(feed, read, &seqs, origin, result, now);
                });
            }
            Message::Looked(epoch, look) => {
                self.with(epoch, |active, now| active.looked(*look, now))
            }
            Message::Commanded(epoch, result) => {
                self.with(epoch, |active, now| active.commanded(result, now));
            }
            Message::Sweep => self.with(self.epoch, |active, _| active.begin_sweep()),
            Message::Swept(epoch, feed, read, result) => {
                self.with(epoch, |active, now| {
                    active.swept(feed, result, now);
                    active.slots[feed].feed.recent_mut().read_ended(read);
                });
            }
            Message::Walked(epoch, feed, result) => {
                self.with(epoch, |active, now| active.walked(feed, result, now));
            }
            Message::Begun(epoch, result) => self.begun(epoch, result),
            Message::Noted(epoch, written) => self.noted(epoch, written).await,
            Message::Ended(cell, reason) => self.sequencer_ended(&cell, reason),
            Message::Settled(epoch, list) => self.settled(epoch, &list),
            Message::ReadOnly(epoch, reason) => self.read_only(epoch, &reason),
            Message::Parked(epoch, feed, park) => self.parked(epoch, feed, park),
            Message::Returned(epoch, feed, seqs) => self.returned(epoch, feed, &seqs),
            Message::Unanswered(epoch, feed, seq) => self.unanswered(epoch, feed, seq),
            Message::Flushed(tag) => self.flushed(tag),
            Message::Drain(until) => self.drain(until),
            Message::DrainOver(number) => self.drain_over(number),
            Message::Released => self.released(),
        }
    }

    /// Milliseconds since this actor was born: the clock of everything pure below.
    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Lets the active state of this epoch act; anything older is dropped.
    fn with(&mut self, epoch: u64, act: impl FnOnce(&mut Active, u64)) {
        let now = self.now();
        if epoch == self.epoch
            && let Phase::Active(active) = &mut self.phase
        {
            act(active, now);
        }
    }

    fn tag(&mut self, tag: Tag) -> u64 {
        self.next_tag += 1;
        self.tags.insert(self.next_tag, tag);
        self.next_tag
    }

    /// Asks the settler to say when everything it has is written.
    fn flush(&mut self, tag: Tag) {
        let tag = self.tag(tag);
        let message = settler::Message::Flush(self.myself.clone(), tag);
        if !self.arguments.settler.send(message) {
            // No settler, nothing unwritten.
            let _ = self.myself.cast(Message::Flushed(tag));
        }
    }

    fn flushed(&mut self, tag: u64) {
        match self.tags.remove(&tag) {
            Some(Tag::Open(epoch)) => self.open(epoch),
            Some(Tag::Orphan(epoch, feed, key)) => self.with(epoch, |active, now| {
                active.orphaned(feed, key.as_ref(), now);
            }),
            Some(Tag::Cancelled(epoch)) => self.cancelled(epoch),
            Some(Tag::Drained) => self.release_leases(),
            None => {}
        }
    }

    fn settled(&mut self, epoch: u64, list: &[Settled]) {
        if epoch != self.epoch {
            return;
        }
        let now = self.now();
        match &mut self.phase {
            Phase::Active(active) => active.settled(list, now),
            Phase::Draining(draining) => {
                draining.settled(list);
                self.check_drained();
            }
            _ => {}
        }
    }

    fn parked(&mut self, epoch: u64, feed: usize, park: Park) {
        if epoch != self.epoch {
            return;
        }
        let now = self.now();
        match &mut self.phase {
            Phase::Active(active) => active.park(feed, park, now),
            Phase::Draining(draining) => {
                draining.returned(feed, &park.returned);
                self.check_drained();
            }
            _ => {}
        }
    }

    fn unanswered(&mut self, epoch: u64, feed: usize, seq: i64) {
        // An owner learns the same when the event comes back.
        if epoch == self.epoch
            && let Phase::Draining(draining) = &mut self.phase
        {
            draining.unanswered(feed, seq);
            self.check_drained();
        }
    }

    fn returned(&mut self, epoch: u64, feed: usize, seqs: &[i64]) {
        if epoch != self.epoch {
            return;
        }
        let now = self.now();
        match &mut self.phase {
            Phase::Active(active) => active.returned(feed, seqs, now),
            Phase::Draining(draining) => {
                draining.returned(feed, seqs);
                self.check_drained();
            }
            _ => {}
        }
    }

    fn revoke(&self) {
        match &self.phase {
            Phase::Active(active) => active.ownership().revoke(),
            Phase::Draining(draining) => draining.revoke(),
            Phase::Opening | Phase::Standby | Phase::Quiet => {}
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // However this incarnation ended, nothing may be sent in its name any more.
        self.revoke();
    }
}
