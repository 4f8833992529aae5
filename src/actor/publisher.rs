//! The publisher: one per sink. Owns the connection and hands events over, many at once.
//!
//! ```text
//!   opening ──opened──> up ──lost──> opening (pause grows)
//! ```
//!
//! A session that is lost is dropped with everything it had buffered; the next one is a fresh client. A
//! message only comes with a permit, so the mailbox is bounded by the permits.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use ractor::{ActorProcessingErr, ActorRef};
use tokio::task::JoinSet;
use tracing::{Instrument, info, warn};

use self::gate::{Gate, Sign, Turn};
use super::handle::{Handle, Task, panic_text};
use super::permits::{Permit, Permits};
use super::restart::Role;
use super::sequencer;
use super::sequencer::decide::Reply;
use super::tree::{Place, Tree};
use crate::lease::Ownership;
use crate::retry::{back_off, jitter};
use crate::sink::{Delivery, PublishError, PublishErrorKind, Session, Sink, SinkError};
use crate::status::{Board, Gate as ShownGate};

pub mod gate;

/// First and longest pause between attempts to connect: never more than one a second.
const OPEN_PAUSE: Duration = Duration::from_secs(1);
const OPEN_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Limit for one attempt to connect.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// A sink that does not come back from a publish by itself is left this much later.
const OVERTIME: Duration = Duration::from_millis(250);

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

/// One event on its way to the sink.
pub struct HandOver {
    /// Event and attempt.
    pub delivery: Delivery,
    /// Nothing is sent without time left on the lease.
    pub ownership: Arc<Ownership>,
    /// The bound.
    pub permit: Permit,
    /// Whom to answer.
    pub answer: Answer,
    /// Hash of the key, for the gate.
    pub key: u64,
}

/// The duty to answer a sequencer: dropped unanswered, it says what is known.
pub struct Answer {
    to: ActorRef<sequencer::Message>,
    seq: i64,
    sent: bool,
    reply: Option<Reply>,
}

impl Answer {
    /// The duty to answer for `seq`.
    pub fn new(to: ActorRef<sequencer::Message>, seq: i64) -> Self {
        Self {
            to,
            seq,
            sent: false,
            reply: None,
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let reply = self.reply.take().unwrap_or(if self.sent {
            Reply::Lost
        } else {
            Reply::NotSent
        });
        // A sequencer that is gone needs no answer.
        let _ = self.to.cast(sequencer::Message::Answered {
            seq: self.seq,
            reply,
        });
    }
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
}

#[cfg(feature = "cluster")]
impl ractor::Message for Message {}

/// State of a publisher.
pub struct State {
    shared: Arc<Shared>,
    session: Option<Live>,
    opener: Option<Task>,
    tasks: JoinSet<()>,
    failures: u32,
    _place: Place,
}

/// What hand-overs under way share with the actor.
struct Shared {
    arguments: Arguments,
    myself: ActorRef<Message>,
    gate: Mutex<Gate>,
    generation: std::sync::atomic::AtomicU64,
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
            shared: Arc::new(Shared {
                arguments,
                myself,
                gate: Mutex::new(Gate::new()),
                generation: std::sync::atomic::AtomicU64::new(0),
            }),
            session: None,
            opener: None,
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
        // Hand-overs under way belong to the old connection: their outcome is unknown.
        self.tasks.abort_all();
        self.shared.next_generation();
        self.shared.lock().disconnected();
        self.shared.show(gate::State::Closed, Some(reason));
        self.open_later();
    }

    fn open_later(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let spread = jitter(uuid::Uuid::new_v4(), self.failures);
        let pause = back_off(OPEN_PAUSE, OPEN_PAUSE_MAX, self.failures, spread);
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
        if let Some(live) = &self.session {
            self.failures = 0;
            let shared = Arc::clone(&self.shared);
            let session = Arc::clone(&live.session);
            let generation = shared.generation();
            let span = publish_span(&hand_over.delivery);
            self.tasks.spawn(
                shared
                    .hand_over(session, generation, hand_over)
                    .instrument(span),
            );
        }
    }
}

/// The span around one publish: event id, kind and request id.
fn publish_span(delivery: &Delivery) -> tracing::Span {
    // The fields are worked out only where somebody takes the span.
    tracing::info_span!(
        "outbox.publish",
        event_id = %delivery.event.id,
        kind = %delivery.event.kind,
        request_id = delivery.event.request_id(),
    )
}

impl Shared {
    async fn hand_over(
        self: Arc<Self>,
        session: Arc<dyn Session>,
        generation: u64,
        mut hand_over: HandOver,
    ) {
        let left = hand_over.ownership.time_left();
        if !hand_over.ownership.may_begin() {
            return;
        }
        hand_over.permit.used();
        hand_over.answer.sent = true;
        let limit = self.arguments.timeout.min(left);
        let publish = AssertUnwindSafe(session.publish(&hand_over.delivery, limit)).catch_unwind();
        let result = match tokio::time::timeout(limit + OVERTIME, publish).await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(PublishError::retryable(format!(
                "the sink panicked: {}",
                panic_text(&*panic)
            ))),
            Err(_) => Err(PublishError::unknown(format!("no answer within {limit:?}"))),
        };
        if unanswered(&result) && session.lost().now_or_never().is_some() {
            // The connection ended under it: that says nothing about this event.
            let reason = "the connection ended with hand-overs under way".to_owned();
            let _ = self.myself.cast(Message::Lost(generation, reason));
            return;
        }
        self.take_sign(generation, hand_over.key, &result);
        if result.is_err() && hand_over.ownership.time_left().is_zero() {
            // Whatever the client still has buffered must not leave under a lease that may be another's.
            let reason = "a hand-over was still open when the lease's time was over".to_owned();
            let _ = self.myself.cast(Message::Lost(generation, reason));
        }
        drop(hand_over.permit);
        hand_over.answer.reply = Some(Reply::Answered(result));
    }

    fn take_sign(
        &self,
        generation: u64,
        key: u64,
        result: &Result<crate::sink::Receipt, PublishError>,
    ) {
        if generation != self.generation() {
            return;
        }
        let (sign, reason) = match result {
            Ok(_) => {
                self.arguments.permits.succeeded();
                (Sign::Alive, None)
            }
            Err(error) => (sign_of(&error.kind), Some(error.message.as_str())),
        };
        let lost = sign
            == Sign::Unavailable {
                connection_lost: true,
            };
        let spread = jitter(uuid::Uuid::from_u128(u128::from(key)), 1);
        let turn = self.lock().sign(key, sign, spread);
        match turn {
            Turn::None => {}
            Turn::Opened => self.show(gate::State::Open, None),
            Turn::Closed(pause) => {
                self.show(gate::State::Closed, reason);
                if !lost {
                    let _ = self.myself.cast(Message::Closed(pause));
                }
            }
        }
        if lost {
            let reason = reason.unwrap_or("connection lost").to_owned();
            let _ = self.myself.cast(Message::Lost(generation, reason));
        }
    }

    /// Shows the gate to waiters and operators; a change is logged once.
    fn show(&self, state: gate::State, reason: Option<&str>) {
        let Arguments {
            name,
            permits,
            board,
            ..
        } = &self.arguments;
        permits.show(state);
        let shown = match state {
            gate::State::Open => ShownGate::Open,
            gate::State::Closed => ShownGate::Closed,
            gate::State::Probing => ShownGate::Probing,
        };
        if board.gate(name, shown, reason.map(str::to_owned)) {
            match shown {
                ShownGate::Open => info!(sink = %name, "sink takes events"),
                _ => warn!(
                    sink = %name,
                    reason = reason.unwrap_or("not connected"),
                    "sink takes no events; delivery to it pauses until it does"
                ),
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn generation(&self) -> u64 {
        self.generation.load(std::sync::atomic::Ordering::Acquire)
    }

    fn next_generation(&self) -> u64 {
        self.generation
            .fetch_add(1, std::sync::atomic::Ordering::AcqRel)
            + 1
    }
}

fn unanswered(result: &Result<crate::sink::Receipt, PublishError>) -> bool {
    matches!(result, Err(error) if error.kind == PublishErrorKind::Unknown)
}

fn sign_of(kind: &PublishErrorKind) -> Sign {
    match kind {
        PublishErrorKind::Unavailable { connection_lost } => Sign::Unavailable {
            connection_lost: *connection_lost,
        },
        PublishErrorKind::Unknown => Sign::Silence,
        PublishErrorKind::Retryable | PublishErrorKind::Rejected { .. } => Sign::Alive,
    }
}
