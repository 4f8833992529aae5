//! What all sequencers of a feed share.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;
use tracing::warn;

use super::decide::BLOCKED;
use crate::actor::claimer;
use crate::actor::claimer::feed::action::Work;
use crate::actor::handle::Handle;
use crate::actor::publisher::Publisher;
use crate::actor::settler;
use crate::actor::tree::Tree;
use crate::lease::Ownership;
use crate::telemetry::Telemetry;

/// What all sequencers of a feed share.
pub struct FeedContext {
    /// The database.
    pub database: Arc<str>,
    /// The sink.
    pub sink: Arc<str>,
    /// Which feed of the claimer.
    pub feed: usize,
    /// Which incarnation of the claimer's state.
    pub epoch: u64,
    /// What is owned.
    pub ownership: Arc<Ownership>,
    /// Where events go.
    pub publisher: Publisher,
    /// Where outcomes go.
    pub settler: Handle<settler::Message>,
    /// Where the key's state goes.
    pub claimer: ActorRef<claimer::Message>,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Where the actor is entered.
    pub tree: Tree,
}

impl FeedContext {
    /// Says that a charged failure keeps an event and its key waiting.
    pub(super) fn log_retry(&self, work: &Work, attempts: u32, pause: Duration, error: &str) {
        // The first failure of an event is news; the following ones are in its delivery row.
        if attempts == 1 || pause >= BLOCKED {
            warn!(
                event_id = %work.event.id,
                kind = %work.event.kind,
                request_id = work.event.request_id().unwrap_or_default(),
                database = %self.database,
                sink = %self.sink,
                attempts,
                blocked = pause >= BLOCKED,
                %error,
                "publish failed; the key waits and is tried again"
            );
        }
    }
}
