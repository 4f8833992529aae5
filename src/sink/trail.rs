//! Reading a sink back: what `verify` compares with what a database remembers of its deliveries.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::SinkError;
use crate::event::Timestamp;

/// Can a sink be read back?
pub enum Readback {
    /// By this.
    Trail(Box<dyn Trail>),
    /// Not at all, for this reason.
    No(String),
}

/// What a sink holds of one source's events, in the order of its places.
///
/// It reads only: nothing that the sink holds, and nobody else who reads it, is touched.
#[async_trait]
pub trait Trail: Send {
    /// What the sink says about itself now.
    ///
    /// # Errors
    /// The sink could not be reached, or does not let itself be read.
    async fn extent(&mut self) -> Result<Extent, SinkError>;

    /// Begins to read, up to what the sink holds at this moment. May be called again.
    ///
    /// # Errors
    /// As [`Trail::extent`].
    async fn begin(&mut self, start: Start) -> Result<(), SinkError>;

    /// The next of them, perhaps none of which is the source's; `None` at the end. Bounded, whatever the sink holds.
    ///
    /// # Errors
    /// As [`Trail::extent`].
    async fn next(&mut self) -> Result<Option<Vec<Held>>, SinkError>;

    /// Leaves nothing behind.
    async fn close(&mut self);
}

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the first message.
    First,
    /// With the first message from this moment on.
    Time(Timestamp),
    /// At this place.
    Place(u64),
}

/// One message that a sink holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Where it stands.
    pub place: u64,
    /// When it was stored, by the sink's clock; where nobody knows that, when the event occurred.
    pub at: Timestamp,
    /// The event's identity.
    pub id: Uuid,
    /// It was sent again on purpose, under a message id of its own.
    pub replay: bool,
    /// The event's place in the outbox, as far as the message tells.
    pub seq: Option<i64>,
    /// The event's key.
    pub ordering_key: Option<String>,
}

/// What a sink says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The stream or file, as receipts name it.
    pub container: String,
    /// The first place that is held; above `last` when nothing is.
    pub first: u64,
    /// The last place that there ever was.
    pub last: u64,
    /// Later places were stored later.
    pub in_time_order: bool,
    /// When the message at the first place was stored.
    pub first_at: Option<Timestamp>,
    /// When the container was made.
    pub created: Option<Timestamp>,
    /// What it lets go by itself.
    pub lets_go: LetsGo,
}

/// What a sink lets go by itself, which is no loss.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LetsGo {
    /// What is older than this.
    pub after: Option<Duration>,
    /// Its oldest messages, because it is full.
    pub oldest: bool,
    /// Everything at once from time to time, because somebody takes the container away and begins another.
    pub all: bool,
    /// Single messages anywhere, for this reason: what is not held need not be lost.
    pub any: Option<String>,
}
