//! What all sequencers of a feed share.

use std::sync::Arc;

use ractor::ActorRef;
use tracing::warn;

use crate::actor::claimer;
use crate::actor::handle::Handle;
use crate::actor::publisher::Publisher;
use crate::actor::settler::batch::Item;
use crate::actor::settler::{self, Tell};
use crate::actor::tree::Tree;
use crate::event::Event;
use crate::lease::Ownership;
use crate::route::Route;
use crate::source::{Outcome, Verdict};
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
    /// The sink had an event already, which was `expected` or not.
    pub fn duplicate(&self, event: &Event, expected: bool) {
        let (database, sink) = (&self.database, &self.sink);
        self.telemetry.duplicate(database, sink, expected);
        if !expected {
            warn!(
                event_id = %event.id, %database, %sink,
                "the sink says it had this event already, on its first hand-over; two databases or two sinks may share message ids"
            );
        }
    }

    /// The outcome of an event, with whom to tell when it is committed: the claimer.
    pub fn outcome(&self, event: &Event, route: &Route, verdict: Verdict) -> Item<Tell> {
        let key = event.ordering_key.as_deref();
        Item {
            outcome: Outcome {
                seq: event.seq,
                id: event.id,
                sink: Arc::clone(&self.sink),
                route: Arc::clone(&route.sinks),
                lease: self.ownership.lease_for(key, event.seq),
                verdict,
            },
            tell: Tell {
                claimer: self.claimer.clone(),
                epoch: self.epoch,
                feed: self.feed,
                sequencer: None,
            },
        }
    }
}
