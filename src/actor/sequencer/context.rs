//! What all sequencers of a feed share.

use std::sync::Arc;

use ractor::ActorRef;

use crate::actor::claimer;
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
