//! A row of the outbox as a feed sees it.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::event::{Event, Payload, Timestamp};

/// One row as a feed sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Place in the outbox.
    pub seq: i64,
    /// Identity.
    pub id: Uuid,
    /// Kind.
    pub kind: String,
    /// Key, if it has one.
    pub ordering_key: Option<Arc<str>>,
    /// Time until the row is due (delayed by its writer, or backing off for this sink); zero when it is.
    pub due_in: Duration,
    /// Charged failures for this sink.
    pub attempts: u32,
    /// This sink is done with it; another still waits.
    pub done: bool,
    /// To be set aside instead of sent, by an operator's word; it is due then, whatever it waited for.
    pub skip: Option<String>,
    /// Size of the payload in bytes.
    pub size: usize,
    /// The rest, unless it was left out.
    pub body: Option<Body>,
}

/// The part of a row that costs: left out where it would not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// Payload.
    pub payload: Payload,
    /// Content type.
    pub content_type: Option<String>,
    /// Headers as JSON text.
    pub headers: String,
    /// When it happened.
    pub occurred_at: Timestamp,
}

impl Row {
    /// The event, if the body was fetched.
    pub fn into_event(self) -> Option<Event> {
        let body = self.body?;
        Some(Event {
            seq: self.seq,
            id: self.id,
            kind: self.kind,
            ordering_key: self.ordering_key,
            payload: body.payload,
            content_type: body.content_type,
            headers: body.headers,
            occurred_at: body.occurred_at,
        })
    }
}
