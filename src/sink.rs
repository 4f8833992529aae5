//! Where events go: the seam between the relay's core and brokers, files and endpoints.
//!
//! A [`Sink`] is the configured destination and lives as long as the relay. It opens [`Session`]s: one
//! session is one connection, and a session that lost its connection is thrown away with everything
//! that it still had buffered, because a client that reconnects by itself would send old commands
//! behind newer events.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::event::Event;
use crate::lease::Lease;
use trail::Readback;

mod behind;
pub mod file;
mod lines;
pub(crate) mod lost;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
pub mod stdout;
pub mod trail;

/// A configured destination.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// The type as configuration writes it: `nats`, `file`, …
    fn kind(&self) -> &'static str;

    /// Opens a connection. Called again, with back-off, after a session was lost.
    ///
    /// # Errors
    /// Any error means "not now": it is shown to the operator and the call is repeated.
    async fn open(&self) -> Result<Arc<dyn Session>, SinkError>;

    /// For `check`: can events with these `kinds` be delivered? (The stream exists for each subject, the
    /// stream's limits are sound.) Each finding is one sentence for the operator; empty means fine.
    ///
    /// # Errors
    /// The sink could not be reached.
    async fn check(&self, kinds: &[String]) -> Result<Vec<String>, SinkError>;

    /// For `check`, beside what is wrong: what an operator should know of the destination, one sentence each.
    ///
    /// # Errors
    /// The sink could not be reached.
    async fn remarks(&self) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }

    /// For `verify`: what it holds of the events of the database named `source`. Where it cannot be read back, the
    /// reason.
    ///
    /// # Errors
    /// The sink could not be reached.
    async fn trail(&self, source: &str) -> Result<Readback, SinkError> {
        let _ = source;
        Ok(Readback::No(format!(
            "a sink of type {} cannot be read back",
            self.kind()
        )))
    }
}

/// One connection to a destination.
#[async_trait]
pub trait Session: Send + Sync + 'static {
    /// Hands one event over and waits until the destination's own acknowledgement was read.
    ///
    /// Returns within `timeout`, or soon after; the caller does not rely on it. Dropping the future may
    /// leave the event sent or not: the outcome is then unknown.
    ///
    /// # Errors
    /// [`PublishError`], whose kind says whose fault it is and what follows.
    async fn publish(
        &self,
        delivery: &Delivery,
        timeout: Duration,
    ) -> Result<Receipt, PublishError>;

    /// How this session keeps order with several events of a key in flight. `None`: it does not, and of each key
    /// one event is handed over at a time.
    fn lanes(&self) -> Option<Lanes> {
        None
    }

    /// How it keeps order, in one word, for status.
    fn mode(&self) -> &'static str {
        "single"
    }

    /// Hands several events over, and answers for each of them in the same order. Called only where
    /// [`Session::lanes`] gives some, with one batch a lane at a time.
    ///
    /// What such a session promises: an event of a key is stored only if every event of this key before it in the
    /// batch is. So of each key a beginning is `Ok`, then one has failed with its own reason, and the rest is
    /// [`PublishErrorKind::Behind`] (not stored, and never will be) or `Unknown`; where the batch ended with the failure
    /// of another key, all that follows is `Behind`. Nothing that is not `Unknown` changes its fate after the return.
    ///
    /// Waits `timeout` for each sign of progress, and returns within `limit`, or soon after, whatever happens; then
    /// nothing more is sent. Dropping the future leaves every outcome unknown.
    async fn publish_batch(
        &self,
        batch: &[Delivery],
        timeout: Duration,
        limit: Duration,
    ) -> Vec<Result<Receipt, PublishError>> {
        let _ = (timeout, limit);
        let refuse = |_| Err(PublishError::retryable("this sink takes no batches"));
        batch.iter().map(refuse).collect()
    }

    /// Resolves when the connection is lost, with the reason in words. A session that cannot be lost
    /// stays pending.
    async fn lost(&self) -> String;

    /// Ends the connection; what is still in flight may or may not arrive.
    async fn close(&self);
}

/// How a session keeps order with several events of a key in flight: in batches, of which each lane has one under
/// way. A key is always in the same lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lanes {
    /// Batches under way at the same time, at most.
    pub count: usize,
    /// Events of a batch, at most.
    pub events: usize,
    /// Their bytes, at most; a larger event goes alone.
    pub bytes: usize,
}

/// One hand-over: the event and what the relay knows beside it.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The event.
    pub event: Arc<Event>,
    /// Name of the source database.
    pub source: Arc<str>,
    /// Charged failures + 1.
    pub attempt: u32,
    /// An earlier hand-over of this event ended without an answer, or this is a restart that cannot
    /// know: a `duplicate` answer is then expected rather than alarming.
    pub may_be_repeat: bool,
    /// The lease under which it is sent: of a shard nothing comes under a lower token after a higher one.
    pub lease: Lease,
}

/// The destination's acknowledgement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Stream, file or other container that holds the event now.
    pub stream: Option<String>,
    /// Position in it.
    pub position: Option<u64>,
    /// The destination had the event already.
    pub duplicate: bool,
}

/// Whose fault a failed publish was, and so what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishErrorKind {
    /// The destination cannot take anything now, or not this subject (refused, full, no responders,
    /// permission, 5xx). Nothing is charged. `connection_lost`: the whole session is gone.
    Unavailable {
        /// The session is gone: the gate closes at once.
        connection_lost: bool,
    },
    /// The destination has no room for any event, or no time: nothing is charged, however often and whatever others
    /// manage.
    Full,
    /// This event failed and may succeed later: an attempt is charged.
    Retryable,
    /// This event can never be taken: it is discarded at once with this code (`too_large`,
    /// `invalid_subject`, `invalid_header`, `refused`, …).
    Rejected {
        /// A word from a closed set.
        code: &'static str,
    },
    /// It was sent and no answer came: stored or not, nobody knows. Nothing is charged; it is sent again soon with the
    /// same id.
    Unknown,
    /// The sink's code panicked over this event. Nothing is charged; the third time in a row it is discarded as
    /// `crashed`.
    Panicked,
    /// It was not sent, and never will be: in a batch, because one before it was not stored. Nothing is charged.
    Behind,
}

/// A failed publish.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct PublishError {
    /// What follows from it.
    pub kind: PublishErrorKind,
    /// What happened, in words, without secrets.
    pub message: String,
}

impl PublishError {
    /// The destination cannot take anything now; the connection stands.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            kind: PublishErrorKind::Unavailable {
                connection_lost: false,
            },
            message: message.into(),
        }
    }

    /// The destination has no room now.
    pub fn full(message: impl Into<String>) -> Self {
        Self {
            kind: PublishErrorKind::Full,
            message: message.into(),
        }
    }

    /// The connection is gone.
    pub fn connection_lost(message: impl Into<String>) -> Self {
        Self {
            kind: PublishErrorKind::Unavailable {
                connection_lost: true,
            },
            message: message.into(),
        }
    }

    /// Is the whole session gone?
    pub fn is_connection_lost(&self) -> bool {
        let gone = PublishErrorKind::Unavailable {
            connection_lost: true,
        };
        self.kind == gone
    }

    /// This event failed, later it may not.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self {
            kind: PublishErrorKind::Retryable,
            message: message.into(),
        }
    }

    /// The sink's code panicked.
    pub fn panicked(message: impl Into<String>) -> Self {
        Self {
            kind: PublishErrorKind::Panicked,
            message: message.into(),
        }
    }

    /// This event can never be taken.
    pub fn rejected(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind: PublishErrorKind::Rejected { code },
            message: message.into(),
        }
    }

    /// One before it in the batch was not stored.
    pub fn behind() -> Self {
        Self::unsent("an event before it was not stored")
    }

    /// It was not sent, for a reason that is not its own.
    pub fn unsent(message: impl Into<String>) -> Self {
        Self {
            kind: PublishErrorKind::Behind,
            message: message.into(),
        }
    }

    /// Sent, no answer.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self {
            kind: PublishErrorKind::Unknown,
            message: message.into(),
        }
    }
}

/// A sink that could not be opened or checked.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    /// What happened and what to do, in words, without secrets.
    pub message: String,
    /// The cause, when another crate gave one.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl SinkError {
    /// An error in words.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }
}
