//! The door: start a relay inside a program or a larger ractor system, watch it, stop it.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::route::Routes;
use crate::sink::Sink;
use crate::source::{Retention, Source};
use crate::telemetry::Telemetry;

/// Everything a relay needs, already built: configuration files lead here, embedders start here.
#[derive(Clone)]
pub struct Options {
    /// Databases that hold an outbox.
    pub databases: Vec<DatabaseOptions>,
    /// Destinations.
    pub sinks: Vec<SinkOptions>,
    /// Kinds to sinks.
    pub routes: Routes,
    /// Length of a lease. Default 15 s.
    pub lease_ttl: Duration,
    /// How long finished events are kept.
    pub retention: Retention,
    /// How long a shutdown may take. Default 25 s.
    pub grace: Duration,
    /// Where metrics go.
    pub telemetry: Telemetry,
    /// Identity of this instance. Default: random.
    pub instance: Uuid,
    /// Deliver what is due, then stop (see [`Relay::drained`]).
    pub once: bool,
}

/// One database.
#[derive(Clone)]
pub struct DatabaseOptions {
    /// The outbox.
    pub source: Arc<dyn Source>,
    /// Whether reading waits for transactions that may still show a lower seq.
    pub gap_guard: GapGuard,
    /// Longest pause between polls when nothing wakes the reader. Default 1 s with polling, 30 s beside LISTEN.
    pub poll_max: Duration,
    /// After this much silence release the leases and stop every statement but LISTEN. Default: never.
    pub quiet_after: Option<Duration>,
    /// Pause between sweeps. Default 60 s.
    pub sweep_every: Duration,
    /// Events read and not yet settled, per feed. Default 8192.
    pub budget_events: usize,
    /// Their bytes. Default 32 MiB.
    pub budget_bytes: usize,
}

/// One destination.
#[derive(Clone)]
pub struct SinkOptions {
    /// Name from configuration.
    pub name: String,
    /// The destination.
    pub sink: Arc<dyn Sink>,
    /// Limit for one publish. Default 4 s.
    pub publish_timeout: Duration,
    /// Publishes in flight. Default 2048.
    pub max_in_flight: usize,
    /// Their bytes. Default 32 MiB.
    pub max_in_flight_bytes: usize,
}

/// What reading does about numbers missing in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GapGuard {
    /// Go on; a late event of a key that has moved on is delivered late and counted as an inversion.
    #[default]
    Off,
    /// Wait until the transactions that hold the missing numbers have ended.
    Hold,
}
