//! The supervisor: one per relay. Parent of the publishers and the databases.
//!
//! Publishers first, so that databases find them; shutdown the other way round, from the intake down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::error;

use super::claimer::draining::Drained;
use super::database::{self, DatabaseActor};
use super::handle::Handle;
use super::permits::Permits;
use super::publisher::{self, Publisher, PublisherActor, gate};
use super::restart::{Decision, Restarts, Role, rule_of};
use super::tree::{Place, Tree};
use crate::relay::{DatabaseOptions, Options, SinkOptions};
use crate::status::{ActorState, Board, DatabaseState};

/// How often the tree shows that it lives.
const BEAT: Duration = Duration::from_secs(2);
/// Time beyond the grace in which databases may still report.
const OVERTIME: Duration = Duration::from_secs(4);

/// What a supervisor needs.
#[derive(Clone)]
pub struct Arguments {
    /// The relay's options.
    pub options: Arc<Options>,
    /// Per database: true while everything due is delivered.
    pub caught_up: BTreeMap<String, watch::Sender<bool>>,
    /// What is shown.
    pub board: Arc<Board>,
    /// Where actors are entered.
    pub tree: Tree,
}

/// Messages of a supervisor.
#[derive(Debug)]
pub enum Message {
    /// A child's pause is over.
    Start(Role, Arc<str>),
    /// A sign of life.
    Beat,
    /// Shut down within this time, and report.
    Shutdown(Duration, oneshot::Sender<Drained>),
    /// A database has drained.
    DatabaseDrained(Arc<str>, Drained),
    /// No database may take longer.
    Over,
}

#[cfg(feature = "cluster")]
impl ractor::Message for Message {}

/// State of a supervisor.
pub struct State {
    arguments: Arguments,
    myself: ActorRef<Message>,
    publishers: BTreeMap<Arc<str>, PublisherChild>,
    databases: BTreeMap<Arc<str>, DatabaseChild>,
    shutdown: Option<Shutdown>,
    _place: Place,
}

struct PublisherChild {
    options: SinkOptions,
    publisher: Publisher,
    restarts: Restarts,
}

struct DatabaseChild {
    options: DatabaseOptions,
    handle: Handle<database::Message>,
    restarts: Restarts,
}

struct Shutdown {
    waiting: BTreeSet<Arc<str>>,
    report: Drained,
    reply: Option<oneshot::Sender<Drained>>,
}

/// The actor.
pub struct SupervisorActor;

#[ractor::actor(message = Message, state = State, arguments = Arguments)]
impl SupervisorActor {
    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let options = Arc::clone(&arguments.options);
        let publishers = options.sinks.iter().map(|sink| {
            let permits = Arc::new(Permits::new(sink.max_in_flight, sink.max_in_flight_bytes));
            let child = PublisherChild {
                options: sink.clone(),
                publisher: Publisher {
                    handle: Handle::default(),
                    permits,
                },
                restarts: Restarts::default(),
            };
            (Arc::from(sink.name.as_str()), child)
        });
        let databases = options.databases.iter().map(|database| {
            let child = DatabaseChild {
                options: database.clone(),
                handle: Handle::default(),
                restarts: Restarts::default(),
            };
            (Arc::from(database.source.name()), child)
        });
        let mut state = State {
            _place: arguments
                .tree
                .enter(Role::Supervisor, "relay", myself.get_cell()),
            publishers: publishers.collect(),
            databases: databases.collect(),
            arguments,
            myself: myself.clone(),
            shutdown: None,
        };
        for name in state.publishers.keys().cloned().collect::<Vec<_>>() {
            state.start(Role::Publisher, &name).await;
        }
        for name in state.databases.keys().cloned().collect::<Vec<_>>() {
            state.start(Role::Database, &name).await;
        }
        myself.cast(Message::Beat)?;
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Start(role, name) => state.start(role, &name).await,
            Message::Beat => state.beat(),
            Message::Shutdown(grace, reply) => state.begin_shutdown(grace, reply),
            Message::DatabaseDrained(name, report) => state.database_drained(&name, report),
            Message::Over => state.end(),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                state.child_ended(&cell, &reason.unwrap_or_else(|| "stopped".into()));
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                state.child_ended(&cell, &error.to_string());
            }
            _ => {}
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<Message>,
        _state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        // Whoever is still there ends in order, connections last.
        myself
            .stop_children_and_wait(Some("relay ended".into()), Some(Duration::from_secs(2)))
            .await;
        Ok(())
    }
}

impl State {
    async fn start(&mut self, role: Role, name: &Arc<str>) {
        if self.shutdown.is_some() {
            return;
        }
        let parent = self.myself.get_cell();
        let result = match role {
            Role::Publisher => {
                let Some(child) = self.publishers.get(name) else {
                    return;
                };
                let arguments = publisher::Arguments {
                    name: Arc::clone(name),
                    sink: Arc::clone(&child.options.sink),
                    timeout: child.options.publish_timeout,
                    permits: Arc::clone(&child.publisher.permits),
                    board: Arc::clone(&self.arguments.board),
                    tree: self.arguments.tree.clone(),
                };
                Actor::spawn_linked(None, PublisherActor, arguments, parent)
                    .await
                    .map(|(actor, _)| child.publisher.handle.set(Some(actor)))
            }
            _ => {
                let Some(child) = self.databases.get(name) else {
                    return;
                };
                let arguments = self.database_arguments(name, &child.options);
                Actor::spawn_linked(None, DatabaseActor, arguments, parent)
                    .await
                    .map(|(actor, _)| child.handle.set(Some(actor)))
            }
        };
        match result {
            Ok(()) => {
                let board = &self.arguments.board;
                board.actor(role.as_str(), name, ActorState::Running, None);
            }
            Err(problem) => self.restart(role, name, &problem.to_string()),
        }
    }

    fn database_arguments(
        &self,
        name: &Arc<str>,
        options: &DatabaseOptions,
    ) -> database::Arguments {
        let sinks = self
            .publishers
            .iter()
            .map(|(sink, child)| (Arc::clone(sink), child.publisher.clone()));
        database::Arguments {
            name: Arc::clone(name),
            database: options.clone(),
            relay: Arc::clone(&self.arguments.options),
            sinks: sinks.collect(),
            caught_up: self
                .arguments
                .caught_up
                .get(&**name)
                .cloned()
                .unwrap_or_else(|| watch::Sender::new(false)),
            board: Arc::clone(&self.arguments.board),
            parent: self.myself.clone(),
            tree: self.arguments.tree.clone(),
        }
    }

    fn child_ended(&mut self, cell: &ActorCell, reason: &str) {
        let id = cell.get_id();
        let publisher = self.publishers.iter().find_map(|(name, child)| {
            let found = child.publisher.handle.get()?.get_id() == id;
            found.then(|| Arc::clone(name))
        });
        if let Some(name) = publisher {
            let child = &self.publishers[&name];
            child.publisher.handle.set(None);
            // Nobody is there to take events: waiters wait.
            child.publisher.permits.show(gate::State::Closed);
            return self.restart(Role::Publisher, &name, reason);
        }
        let database = self.databases.iter().find_map(|(name, child)| {
            let found = child.handle.get()?.get_id() == id;
            found.then(|| Arc::clone(name))
        });
        if let Some(name) = database {
            self.databases[&name].handle.set(None);
            if self.shutdown.is_some() {
                return self.database_drained(&name, Drained::default());
            }
            self.restart(Role::Database, &name, reason);
        }
    }

    fn restart(&mut self, role: Role, name: &Arc<str>, reason: &str) {
        if self.shutdown.is_some() {
            return;
        }
        let restarts = match role {
            Role::Publisher => self
                .publishers
                .get_mut(name)
                .map(|child| &mut child.restarts),
            _ => self
                .databases
                .get_mut(name)
                .map(|child| &mut child.restarts),
        };
        let Some(restarts) = restarts else { return };
        let board = &self.arguments.board;
        match restarts.failed(rule_of(role), now_ms()) {
            Decision::Restart(pause) => {
                self.arguments.options.telemetry.restart(role.as_str());
                board.actor(
                    role.as_str(),
                    name,
                    ActorState::Restarting,
                    Some(reason.into()),
                );
                error!(actor = %role, %name, %reason, ?pause, "actor ended unexpectedly; restarting");
                let name = Arc::clone(name);
                self.myself
                    .send_after(pause, move || Message::Start(role, name));
            }
            Decision::Park => {
                board.actor(role.as_str(), name, ActorState::Parked, Some(reason.into()));
                if role == Role::Database {
                    board.database_state(name, DatabaseState::Parked, Some(reason.into()));
                }
                error!(actor = %role, %name, %reason, "actor crashed too often and stays down; restart the relay when the cause is mended");
            }
        }
    }

    fn beat(&self) {
        self.arguments.board.beat();
        self.myself.send_after(BEAT, || Message::Beat);
    }

    fn begin_shutdown(&mut self, grace: Duration, reply: oneshot::Sender<Drained>) {
        if self.shutdown.is_some() {
            return;
        }
        self.arguments.board.draining();
        let until = Instant::now() + grace;
        let mut waiting = BTreeSet::new();
        for (name, child) in &self.databases {
            if child.handle.send(database::Message::Drain(until)) {
                waiting.insert(Arc::clone(name));
            }
        }
        let done = waiting.is_empty();
        self.shutdown = Some(Shutdown {
            waiting,
            report: Drained::default(),
            reply: Some(reply),
        });
        self.myself.send_after(grace + OVERTIME, || Message::Over);
        if done {
            self.end();
        }
    }

    fn database_drained(&mut self, name: &Arc<str>, report: Drained) {
        let Some(shutdown) = &mut self.shutdown else {
            return;
        };
        if shutdown.waiting.remove(name) {
            shutdown.report += report;
        }
        if shutdown.waiting.is_empty() {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some(shutdown) = &mut self.shutdown {
            if let Some(reply) = shutdown.reply.take() {
                let _ = reply.send(shutdown.report);
            }
            self.myself.stop(Some("shut down".into()));
        }
    }
}

/// Milliseconds on a clock of this process.
pub(super) fn now_ms() -> u64 {
    static START: std::sync::OnceLock<StdInstant> = std::sync::OnceLock::new();
    let elapsed = START.get_or_init(StdInstant::now).elapsed();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}
