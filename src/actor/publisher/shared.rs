//! What hand-overs under way share with their publisher: the gate, and which session is the present one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ractor::ActorRef;
use tracing::{info, warn};

use super::gate::{self, Gate, Sign, Turn};
use super::{Arguments, Message};
use crate::retry::jitter;
use crate::sink::{PublishError, PublishErrorKind, Receipt};
use crate::status::Gate as ShownGate;

/// What hand-overs under way share with the actor.
pub(super) struct Shared {
    pub(super) arguments: Arguments,
    pub(super) myself: ActorRef<Message>,
    gate: Mutex<Gate>,
    generation: AtomicU64,
}

impl Shared {
    pub(super) fn new(arguments: Arguments, myself: ActorRef<Message>) -> Self {
        Self {
            arguments,
            myself,
            gate: Mutex::new(Gate::new()),
            generation: AtomicU64::new(next()),
        }
    }

    /// The session of this generation has to go.
    pub(super) fn lose(&self, generation: u64, reason: &str) {
        let _ = self
            .myself
            .cast(Message::Lost(generation, reason.to_owned()));
    }

    /// Events were acknowledged, one of this key among them.
    pub(super) fn take_signs_of_life(&self, generation: u64, key: u64, count: u64) {
        if generation == self.generation() {
            self.arguments.permits.succeeded(count);
            self.turn(generation, key, Sign::Alive, None);
        }
    }

    /// Takes in how a hand-over of key `key` (a hash) ended.
    pub(super) fn take_sign(
        &self,
        generation: u64,
        key: u64,
        result: &Result<Receipt, PublishError>,
    ) {
        match result {
            Ok(_) => self.take_signs_of_life(generation, key, 1),
            Err(error) if generation == self.generation() => {
                self.turn(generation, key, sign_of(&error.kind), Some(&error.message));
            }
            Err(_) => {}
        }
    }

    fn turn(&self, generation: u64, key: u64, sign: Sign, reason: Option<&str>) {
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
            self.lose(generation, reason.unwrap_or("connection lost"));
        }
    }

    /// Shows the gate to waiters and operators; a change is logged once.
    pub(super) fn show(&self, state: gate::State, reason: Option<&str>) {
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

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn next_generation(&self) -> u64 {
        let generation = next();
        self.generation.store(generation, Ordering::Release);
        generation
    }
}

/// No two sessions have the same number, not even those of different publishers, which follow each other.
fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn sign_of(kind: &PublishErrorKind) -> Sign {
    match kind {
        PublishErrorKind::Unavailable { connection_lost } => Sign::Unavailable {
            connection_lost: *connection_lost,
        },
        PublishErrorKind::Full => Sign::Unavailable {
            connection_lost: false,
        },
        PublishErrorKind::Unknown | PublishErrorKind::Behind => Sign::Silence,
        PublishErrorKind::Retryable
        | PublishErrorKind::Panicked
        | PublishErrorKind::Rejected { .. } => Sign::Alive,
    }
}
