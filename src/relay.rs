//! The door: start a relay inside a program or a larger ractor system, watch it, stop it.
//!
//! ```
//! # use std::sync::Arc;
//! # use outboxd::relay::{self, DatabaseOptions, Options, SinkOptions};
//! # use outboxd::retry::Policy;
//! # use outboxd::route::{Route, Routes};
//! # async fn embedded() -> Result<(), Box<dyn std::error::Error>> {
//! let source = Arc::new(outboxd::source::memory::Memory::new("orders", 16));
//! let sink = Arc::new(outboxd::sink::memory::Memory::new());
//! let everything = Route {
//!     name: "all".into(),
//!     kinds: vec!["*".into()],
//!     sinks: Arc::from([Arc::from("events")]),
//!     retry: Policy::default(),
//! };
//! let relay = relay::start(Options::new(
//!     vec![DatabaseOptions::new(source)],
//!     vec![SinkOptions::new("events", sink)],
//!     Routes::new(vec![everything]),
//! ))
//! .await?;
//! relay.drained().await;
//! let report = relay.shutdown().await?;
//! assert_eq!(report.unknown, 0);
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(embedded()).unwrap();
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorRef, SpawnErr};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tracing::warn;
use uuid::Uuid;

use crate::actor::claimer::draining::Drained;
use crate::actor::supervisor::{self, SupervisorActor};
use crate::actor::tree::{Member, Tree};
use crate::lease::SAFETY_MARGIN;

use crate::route::Routes;
use crate::sink::Sink;
use crate::source::{Retention, Source};
use crate::status::Board;
use crate::telemetry::Telemetry;

/// How long a lease lasts, unless said otherwise.
pub const LEASE_TTL: Duration = Duration::from_secs(15);
/// Limit for one publish, unless said otherwise.
pub const PUBLISH_TIMEOUT: Duration = Duration::from_secs(4);

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
}

/// One database.
#[derive(Clone)]
pub struct DatabaseOptions {
    /// The outbox.
    pub source: Arc<dyn Source>,
    /// Whether reading waits for transactions that may still show a lower seq.
    pub gap_guard: GapGuard,
    /// Longest pause between polls while there is no wake-up channel. Default 1 s.
    pub poll_max: Duration,
    /// Longest pause between polls beside an open wake-up channel. Default 30 s.
    pub fallback: Duration,
    /// After this much silence release the leases and stop every statement but LISTEN. Default: never.
    pub quiet_after: Option<Duration>,
    /// Pause between sweeps. Default 60 s.
    pub sweep_every: Duration,
    /// Events read and not yet settled, per feed. Default 4096.
    pub budget_events: usize,
    /// Their bytes. Default 32 MiB.
    pub budget_bytes: usize,
    /// Keys that wait for a time and are kept in memory, per feed; further ones are found again in the
    /// table. Default 100,000.
    pub max_parked: usize,
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
    /// Publishes in flight. Default 4096, as many as are held of one database: fewer would wait for a permit each.
    pub max_in_flight: usize,
    /// Their bytes. Default 32 MiB.
    pub max_in_flight_bytes: usize,
}

/// What reading does about numbers missing in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub enum GapGuard {
    /// Go on; a late event of a key that has moved on is delivered late and counted as an inversion.
    #[default]
    Off,
    /// Wait until the transactions that hold the missing numbers have ended.
    Hold,
}

impl DatabaseOptions {
    /// Defaults for `source`.
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self {
            source,
            gap_guard: GapGuard::Off,
            poll_max: Duration::from_secs(1),
            fallback: Duration::from_secs(30),
            quiet_after: None,
            sweep_every: Duration::from_secs(60),
            budget_events: 4_096,
            budget_bytes: 32 * 1024 * 1024,
            max_parked: 100_000,
        }
    }
}

impl SinkOptions {
    /// Defaults for `sink` under `name`.
    pub fn new(name: impl Into<String>, sink: Arc<dyn Sink>) -> Self {
        Self {
            name: name.into(),
            sink,
            publish_timeout: PUBLISH_TIMEOUT,
            max_in_flight: 4_096,
            max_in_flight_bytes: 32 * 1024 * 1024,
        }
    }
}

impl Options {
    /// Defaults for these databases, sinks and routes.
    pub fn new(databases: Vec<DatabaseOptions>, sinks: Vec<SinkOptions>, routes: Routes) -> Self {
        Self {
            databases,
            sinks,
            routes,
            lease_ttl: LEASE_TTL,
            retention: Retention::default(),
            grace: Duration::from_secs(25),
            telemetry: Telemetry::none(),
            instance: Uuid::new_v4(),
        }
    }

    fn check(&self) -> Result<(), StartError> {
        let mut names: Vec<&str> = self.databases.iter().map(|db| db.source.name()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StartError::Options(format!(
                "two databases are named {:?}; names must differ",
                pair[0]
            )));
        }
        let mut names: Vec<&str> = self.sinks.iter().map(|sink| sink.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StartError::Options(format!(
                "two sinks are named {:?}; names must differ",
                pair[0]
            )));
        }
        for route in self.routes.iter() {
            if let Some(sink) = route
                .sinks
                .iter()
                .find(|sink| !self.sinks.iter().any(|known| *known.name == ***sink))
            {
                return Err(StartError::Options(format!(
                    "route {:?} leads to sink {sink:?}, which does not exist",
                    route.name
                )));
            }
        }
        for sink in &self.sinks {
            let trusted = self.lease_ttl.saturating_sub(SAFETY_MARGIN);
            if sink.publish_timeout >= trusted {
                return Err(StartError::Options(format!(
                    "publish_timeout of sink {:?} ({:?}) must be shorter than lease.ttl ({:?}) less {SAFETY_MARGIN:?}",
                    sink.name, sink.publish_timeout, self.lease_ttl
                )));
            }
        }
        Ok(())
    }
}

/// A relay that cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
    /// The tree could not be started.
    #[error("the supervision tree could not be started")]
    Tree(#[from] SpawnErr),
}

/// A relay that did not end as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The tree ended by itself.
    #[error("the supervision tree ended unexpectedly")]
    Ended,
    /// The shutdown took longer than the grace; leases recover by themselves.
    #[error(
        "shutdown took longer than the grace; leases recover by themselves within the lease time"
    )]
    Overdue,
}

/// What a shutdown found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShutdownReport {
    /// Events acknowledged and settled during the shutdown.
    pub acked: u64,
    /// Events given back unsent: the next owner delivers them.
    pub returned: u64,
    /// Events whose outcome is not known: delivered again under the same ids.
    pub unknown: u64,
}

/// A running relay. Dropping it cancels: everything stops at once, leases end by themselves.
pub struct Relay {
    supervisor: ActorRef<supervisor::Message>,
    join: Option<JoinHandle<()>>,
    board: Arc<Board>,
    tree: Tree,
    caught_up: Vec<watch::Receiver<bool>>,
    grace: Duration,
}

/// Time beyond the grace in which a shutdown may still report.
const OVERTIME: Duration = Duration::from_secs(8);

/// Starts a relay. Databases and brokers need not be there: it waits for them.
///
/// # Errors
/// The options contradict each other.
pub async fn start(options: Options) -> Result<Relay, StartError> {
    start_under(options, None).await
}

/// Starts a relay as a child of `parent`, which is told when the relay ends.
///
/// # Errors
/// As for [`start`].
pub async fn start_linked(options: Options, parent: ActorCell) -> Result<Relay, StartError> {
    start_under(options, Some(parent)).await
}

async fn start_under(options: Options, parent: Option<ActorCell>) -> Result<Relay, StartError> {
    options.check()?;
    if options.sinks.is_empty() {
        warn!("no sinks are configured: every event stays pending in its outbox");
    }
    let databases: Vec<&str> = options
        .databases
        .iter()
        .map(|database| database.source.name())
        .collect();
    let sinks: Vec<(&str, &str)> = options
        .sinks
        .iter()
        .map(|sink| (sink.name.as_str(), sink.sink.kind()))
        .collect();
    let board = Arc::new(Board::new(&databases, &sinks));
    let sink_names: Vec<&str> = sinks.iter().map(|(name, _)| *name).collect();
    for database in &databases {
        options.telemetry.announce(database, &sink_names);
    }
    let caught_up: BTreeMap<String, watch::Sender<bool>> = databases
        .iter()
        .map(|name| ((*name).to_owned(), watch::Sender::new(false)))
        .collect();
    let receivers = caught_up.values().map(watch::Sender::subscribe).collect();
    let tree = Tree::default();
    let grace = options.grace;
    let arguments = supervisor::Arguments {
        options: Arc::new(options),
        caught_up,
        board: Arc::clone(&board),
        tree: tree.clone(),
    };
    let (supervisor, join) = match parent {
        Some(parent) => Actor::spawn_linked(None, SupervisorActor, arguments, parent).await?,
        None => Actor::spawn(None, SupervisorActor, arguments).await?,
    };
    Ok(Relay {
        supervisor,
        join: Some(join),
        board,
        tree,
        caught_up: receivers,
        grace,
    })
}

impl Relay {
    /// What the relay shows of itself.
    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// The actors that run now.
    pub fn members(&self) -> Vec<Member> {
        self.tree.members()
    }

    /// The live tree; it can be asked after the relay has ended, too.
    pub fn tree(&self) -> Tree {
        self.tree.clone()
    }

    /// The supervisor's cell, for hosts that link or observe it.
    pub fn cell(&self) -> ActorCell {
        self.supervisor.get_cell()
    }

    /// Waits until everything due is delivered and settled, in every database that this instance owns. What
    /// is parked or delayed is not waited for. Cancel safe.
    pub async fn drained(&self) {
        let mut receivers = self.caught_up.clone();
        loop {
            let mut all = true;
            for receiver in &mut receivers {
                all &= *receiver.borrow_and_update();
            }
            if all {
                return;
            }
            let waits = receivers
                .iter_mut()
                .map(|receiver| Box::pin(receiver.changed()));
            let (changed, _, _) = futures_util::future::select_all(waits).await;
            if changed.is_err() {
                // The tree is gone: nothing will drain any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until the tree ends by itself, which it should not. Cancel safe.
    ///
    /// # Errors
    /// Always, once it returns.
    pub async fn stopped(&self) -> Result<(), RelayError> {
        let _ = self.supervisor.get_cell().wait(None).await;
        Err(RelayError::Ended)
    }

    /// Stops from the intake down: reading stops, what is out may finish within the grace, the rest goes back, outcomes are
    /// settled, leases released, connections closed.
    ///
    /// # Errors
    /// [`RelayError::Overdue`] when it takes longer; everything is stopped then all the same.
    pub async fn shutdown(mut self) -> Result<ShutdownReport, RelayError> {
        let (reply, report) = oneshot::channel();
        let message = supervisor::Message::Shutdown(self.grace, reply);
        if self.supervisor.cast(message).is_err() {
            return Err(RelayError::Ended);
        }
        let limit = self.grace + OVERTIME;
        let report = match tokio::time::timeout(limit, report).await {
            Ok(Ok(report)) => report,
            Ok(Err(_)) => return Err(RelayError::Ended),
            Err(_) => return Err(RelayError::Overdue),
        };
        if let Some(join) = self.join.take()
            && tokio::time::timeout(OVERTIME, join).await.is_err()
        {
            return Err(RelayError::Overdue);
        }
        let Drained {
            acked,
            returned,
            unknown,
        } = report;
        Ok(ShutdownReport {
            acked,
            returned,
            unknown,
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Everything below goes with it; ownership is revoked as the states are dropped.
        self.supervisor.kill();
    }
}

/// How long after an event was sent its outcome may still be unknown before it is sent again, as long as
/// nothing else fails: the hand-over itself, then either the longest pause after a lost answer, or, when
/// this instance was killed, the end of its lease and the moment a successor needs.
///
/// A destination that forgets message ids sooner stores such an event twice.
pub fn repeats_within(lease_ttl: Duration, publish_timeout: Duration) -> Duration {
    lease_ttl + SAFETY_MARGIN + publish_timeout + crate::actor::sequencer::decide::UNKNOWN_PAUSE
}
