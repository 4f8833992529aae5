//! The publisher: one per sink. Owns the connection and hands events over, many at once.
//!
//! ```text
//!   opening ──opened──> up ──lost──> opening (pause grows)
//! ```
//!
//! A session that is lost is dropped with everything it had buffered; the next one is a fresh client. A
//! message only comes with a permit, so the mailbox is bounded by the permits.
//!
//! Where the session keeps order by itself ([`Session::lanes`]), events go in batches through lanes; otherwise, and
//! for an event whose earlier fate is not known, each is a publish of its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use ractor::{ActorProcessingErr, ActorRef};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::hand_over::HandOver;
use self::lane::Lanes;
use self::shared::Shared;
use super::handle::{Handle, Task};
use super::permits::Permits;
use super::restart::Role;
use super::tree::{Place, Tree};
use crate::retry::jitter;
use crate::sink::{Session, Sink, SinkError};
use crate::status::Board;

pub mod chain;
pub mod gate;
pub mod hand_over;
mod lane;
mod shared;
mod single;

/// From the beginning of one attempt to connect to the next, and up to a quarter more: never more than one a second, and
/// soon after the sink is back however long it was away.
const OPEN_PAUSE: Duration = Duration::from_secs(1);
/// Limit for one attempt to connect.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// What a publisher needs.
#[derive(Clone)]
pub struct Arguments {
    /// The sink's name.
    pub name: Arc<str>,
    /// The destination.
    pub sink: Arc<dyn Sink>,
    /// Limit for one publish.
    pub timeout: Duration,
    /// The bound in front of the mailbox; outlives the publisher.
    pub permits: Arc<Permits>,
    /// Where the gate is shown.
    pub board: Arc<Board>,
    /// Where the actor is entered.
    pub tree: Tree,
}

/// What sequencers know of a publisher.
#[derive(Clone)]
pub struct Publisher {
    /// Where to send.
    pub handle: Handle<Message>,
    /// Permit first.
    pub permits: Arc<Permits>,
}

/// Messages of a publisher.
pub enum Message {
    /// Hand this over.
    Publish(HandOver),
    /// An attempt to connect ended.
    Opened(u64, Result<Arc<dyn Session>, SinkError>),
    /// The session of this generation is gone, or has to go.
    Lost(u64, String),
    /// The gate closed while the session stands: probe after this pause.
    Closed(Duration),
    /// The pause is over.
    Probe,
    /// Try to connect.
    Open,
    /// A lease ends: what may not leave any more goes back at once.
    Purge,
    /// The batch under way in this lane of this generation has ended.
    LaneFree(u64, usize),
}

#[cfg(feature = "cluster")]
impl ractor::Message for Message {}

/// State of a publisher.
pub struct State {
    shared: Arc<Shared>,
    session: Option<Live>,
    lanes: Lanes,
    opener: Option<Task>,
    /// When the last attempt to connect began.
    tried: Instant,
    tasks: JoinSet<()>,
    failures: u32,
    _place: Place,
}

/// A session that is closed when its publisher goes, however it goes.
struct Live {
    session: Arc<dyn Session>,
    _watcher: Task,
}

impl Drop for Live {
    fn drop(&mut self) {
        let session = Arc::clone(&self.session);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { session.close().await });
        }
    }
}

/// The actor.
pub struct PublisherActor;

#[ractor::actor(message = Message, state = State, arguments = Arguments)]
impl PublisherActor {
    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let place = arguments.tree.enter(
            Role::Publisher,
            arguments.name.to_string(),
            myself.get_cell(),
        );
        arguments.permits.show(gate::State::Closed);
        myself.cast(Message::Open)?;
        Ok(State {
            shared: Arc::new(Shared::new(arguments, myself)),
            session: None,
            lanes: Lanes::default(),
            opener: None,
            tried: Instant::now(),
            tasks: JoinSet::new(),
            failures: 0,
            _place: place,
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Publish(hand_over) => state.publish(hand_over),
            Message::Opened(generation, result) => state.opened(generation, result),
            Message::Lost(generation, reason) => state.lost(generation, &reason),
            Message::Closed(pause) => state.probe_after(pause),
            Message::Probe => state.probe(),
            Message::Open => state.open(),
            Message::Purge => state.lanes.purge(),
            Message::LaneFree(generation, lane) => state.lane_free(generation, lane),
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Message>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.shared.arguments.permits.show(gate::State::Closed);
        state.tasks.abort_all();
        if let Some(live) = state.session.take() {
            let _ = tokio::time::timeout(Duration::from_secs(1), live.session.close()).await;
        }
        Ok(())
    }
}

impl State {
    fn open(&mut self) {
        let shared = Arc::clone(&self.shared);
        let generation = shared.next_generation();
        self.tried = Instant::now();
        self.opener = Some(Task::spawn(async move {
            let attempt = AssertUnwindSafe(shared.arguments.sink.open()).catch_unwind();
            let result = match tokio::time::timeout(OPEN_LIMIT, attempt).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(SinkError::new("the sink panicked while connecting")),
                Err(_) => Err(SinkError::new(format!(
                    "no connection within {} s",
                    OPEN_LIMIT.as_secs()
                ))),
            };
            let _ = shared.myself.cast(Message::Opened(generation, result));
        }));
    }

    fn opened(&mut self, generation: u64, result: Result<Arc<dyn Session>, SinkError>) {
        if generation != self.shared.generation() {
            return;
        }
        self.opener = None;
        match result {
            Ok(session) => {
                let (watched, myself) = (Arc::clone(&session), self.shared.myself.clone());
                let watcher = Task::spawn(async move {
                    let reason = watched.lost().await;
                    let _ = myself.cast(Message::Lost(generation, reason));
                });
                self.lanes = Lanes::of(session.lanes());
                let Arguments {
                    name,
                    permits,
                    board,
                    ..
                } = &self.shared.arguments;
                permits.keep_order(self.lanes.are_there());
                board.sink(name, |shown| shown.mode = session.mode().to_owned());
                self.session = Some(Live {
                    session,
                    _watcher: watcher,
                });
                self.shared.lock().connected();
                self.shared.show(gate::State::Open, None);
            }
            Err(error) => {
                self.shared.show(gate::State::Closed, Some(&error.message));
                self.open_later();
            }
        }
    }

    fn lost(&mut self, generation: u64, reason: &str) {
        if generation != self.shared.generation() || self.session.is_none() {
            return;
        }
        self.session = None;
        // Hand-overs under way belong to the old connection: their outcome is unknown. Those that wait go back.
        self.tasks.abort_all();
        self.lanes = Lanes::default();
        self.shared.next_generation();
        self.shared.lock().disconnected();
        self.shared.show(gate::State::Closed, Some(reason));
        self.open_later();
    }

    fn open_later(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let spread = jitter(uuid::Uuid::new_v4(), self.failures);
        let pause = OPEN_PAUSE.mul_f64(1.0 + spread / 4.0);
        let pause = pause.saturating_sub(self.tried.elapsed());
        self.shared.myself.send_after(pause, || Message::Open);
    }

    fn probe_after(&mut self, pause: Duration) {
        if self.session.is_some() {
            self.shared.myself.send_after(pause, || Message::Probe);
        }
    }

    fn probe(&mut self) {
        if self.session.is_some() && self.shared.lock().probe() {
            self.shared.arguments.permits.show(gate::State::Probing);
        }
    }

    fn publish(&mut self, hand_over: HandOver) {
        while self.tasks.try_join_next().is_some() {}
        // Without a session the answer is dropped: it says "not sent".
        let Some(live) = &self.session else {
            return;
        };
        self.failures = 0;
        let generation = self.shared.generation();
        let in_lane = self.lanes.are_there() && !hand_over.alone;
        if !hand_over.accept(generation, in_lane) {
            return;
        }
        if in_lane {
            let lane = self.lanes.push(hand_over);
            return self.start_batch(lane);
        }
        let session = Arc::clone(&live.session);
        let publish = Arc::clone(&self.shared).publish(session, generation, hand_over);
        self.tasks.spawn(publish);
    }

    fn lane_free(&mut self, generation: u64, lane: usize) {
        if generation == self.shared.generation() {
            self.lanes.free(lane);
            self.start_batch(lane);
        }
    }

    fn start_batch(&mut self, lane: usize) {
        let Some(live) = &self.session else {
            return;
        };
        let Some(batch) = self.lanes.take_batch(lane, self.shared.arguments.timeout) else {
            return;
        };
        let session = Arc::clone(&live.session);
        let generation = self.shared.generation();
        let publish = Arc::clone(&self.shared).publish_batch(session, generation, lane, batch);
        self.tasks.spawn(publish);
    }
}
