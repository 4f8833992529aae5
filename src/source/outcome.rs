//! What became of a hand-over: the states that a settlement writes.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::lease::Lease;
use crate::sink::Receipt;

/// What became of a hand-over, for one (event, sink).
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Place.
    pub seq: i64,
    /// Identity: an outcome applies only to the row that has both.
    pub id: Uuid,
    /// The sink.
    pub sink: Arc<str>,
    /// Every sink of the event's route, this one included: the row is deleted when all are done.
    pub route: Arc<[Arc<str>]>,
    /// The shard, and the token that must still hold it.
    pub lease: Lease,
    /// The state to write.
    pub verdict: Verdict,
}

/// The state to write for one (event, sink).
#[derive(Debug, Clone)]
pub enum Verdict {
    /// Acknowledged.
    Published {
        /// Charged failures before.
        attempts: u32,
        /// The destination's acknowledgement.
        receipt: Receipt,
    },
    /// A charged failure; the next attempt is due later.
    Retried {
        /// Charged failures, this one included.
        attempts: u32,
        /// Back-off.
        retry_in: Duration,
        /// What happened.
        error: String,
    },
    /// Set aside.
    Discarded {
        /// Why.
        reason: DiscardReason,
        /// The sink's word for it, from a closed set.
        code: Option<&'static str>,
        /// Charged failures, the last included.
        attempts: u32,
        /// The last error.
        error: String,
    },
}

/// Why an event was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiscardReason {
    /// The sink can never take it.
    Permanent,
    /// It failed as often as its route allows.
    RetryBudget,
    /// It took the process down, repeatedly.
    Crashed,
    /// An operator's word.
    Operator,
    /// Its sink was removed.
    Cancelled,
}

impl DiscardReason {
    /// Every reason there is.
    pub const ALL: [Self; 5] = [
        Self::Permanent,
        Self::RetryBudget,
        Self::Crashed,
        Self::Operator,
        Self::Cancelled,
    ];

    /// The word in tables, metrics and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::RetryBudget => "retry_budget",
            Self::Crashed => "crashed",
            Self::Operator => "operator",
            Self::Cancelled => "cancelled",
        }
    }
}
