//! The database: one per source. Parent of its settler, claimer and keeper; does no I/O itself.
//!
//! A crashed child comes back after a pause; one that crashes too often is parked and shown, and the
//! other databases never notice. When the settler fails, outcomes were lost, so the claimer starts anew
//! with it and reads the table again.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{error, warn};

use super::claimer::draining::Drained;
use super::claimer::{self, ClaimerActor};
use super::handle::Handle;
use super::keeper::{self, KeeperActor};
use super::publisher::Publisher;
use super::restart::{Decision, Restarts, Role, rule_of};
use super::settler::{self, SettlerActor};
use super::supervisor;
use super::tree::{Place, Tree};
use crate::relay::{DatabaseOptions, Options};
use crate::status::{ActorState, Board, DatabaseState};

/// Limit for the last words to the source.
const GOODBYE: Duration = Duration::from_secs(1);
/// Limit for the children to end.
const CHILDREN: Duration = Duration::from_secs(1);

/// What a database needs.
#[derive(Clone)]
pub struct Arguments {
    /// Its name.
    pub name: Arc<str>,
    /// Its options.
    pub database: DatabaseOptions,
    /// The relay's options.
    pub relay: Arc<Options>,
    /// The sinks.
    pub sinks: Vec<(Arc<str>, Publisher)>,
    /// True while everything due is delivered.
    pub caught_up: watch::Sender<bool>,
    /// What is shown.
    pub board: Arc<Board>,
    /// The parent.
    pub parent: ActorRef<supervisor::Message>,
    /// Where actors are entered.
    pub tree: Tree,
}

/// Messages of a database.
#[derive(Debug)]
pub enum Message {
    /// A child's pause is over.
    Start(Role),
    /// Shut down until this moment.
    Drain(Instant),
    /// The claimer has drained.
    Drained(Drained),
}

#[cfg(feature = "cluster")]
impl ractor::Message for Message {}

/// State of a database.
pub struct State {
    arguments: Arguments,
    myself: ActorRef<Message>,
    settler: Child<settler::Message>,
    claimer: Child<claimer::Message>,
    keeper: Child<keeper::Message>,
    /// The claimer's pause was over before the settler's.
    claimer_waits: bool,
    draining: Option<Instant>,
    _place: Place,
}

/// A child with its handle and its restarts.
struct Child<M: ractor::Message> {
    handle: Handle<M>,
    restarts: Restarts,
}

impl<M: ractor::Message> Child<M> {
    fn new() -> Self {
        Self {
            handle: Handle::default(),
            restarts: Restarts::default(),
        }
    }

    fn is(&self, cell: &ActorCell) -> bool {
        self.handle
            .get()
            .is_some_and(|actor| actor.get_id() == cell.get_id())
    }
}

/// The actor.
pub struct DatabaseActor;

#[ractor::actor(message = Message, state = State, arguments = Arguments)]
impl DatabaseActor {
    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let mut state = State {
            _place: arguments.tree.enter(
                Role::Database,
                arguments.name.to_string(),
                myself.get_cell(),
            ),
            arguments,
            myself,
            settler: Child::new(),
            claimer: Child::new(),
            keeper: Child::new(),
            claimer_waits: false,
            draining: None,
        };
        state.start(Role::Settler).await;
        state.start(Role::Keeper).await;
        state.start(Role::Claimer).await;
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Start(role) => state.start(role).await,
            Message::Drain(until) => state.drain(until),
            Message::Drained(report) => state.drained(report).await,
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
        // Whoever waits for this actor waits for all below it.
        myself
            .stop_children_and_wait(Some("database ended".into()), Some(CHILDREN))
            .await;
        Ok(())
    }
}

impl State {
    async fn start(&mut self, role: Role) {
        if self.draining.is_some() {
            return;
        }
        let lives = match role {
            Role::Settler => self.settler.handle.get().is_some(),
            Role::Claimer => self.claimer.handle.get().is_some(),
            _ => self.keeper.handle.get().is_some(),
        };
        if lives {
            // Its pause was asked for twice: by its own failure, and by its settler's.
            return;
        }
        if role == Role::Claimer && self.settler.handle.get().is_none() {
            // Outcomes would get lost: it starts with the settler.
            self.claimer_waits = true;
            return;
        }
        let parent = self.myself.get_cell();
        let result = match role {
            Role::Settler => {
                let arguments = self.settler_arguments();
                Actor::spawn_linked(None, SettlerActor, arguments, parent)
                    .await
                    .map(|(actor, _)| self.settler.handle.set(Some(actor)))
            }
            Role::Claimer => {
                let arguments = self.claimer_arguments();
                Actor::spawn_linked(None, ClaimerActor, arguments, parent)
                    .await
                    .map(|(actor, _)| self.claimer.handle.set(Some(actor)))
            }
            Role::Keeper => {
                let arguments = self.keeper_arguments();
                Actor::spawn_linked(None, KeeperActor, arguments, parent)
                    .await
                    .map(|(actor, _)| self.keeper.handle.set(Some(actor)))
            }
            _ => return,
        };
        match result {
            Ok(()) => {
                let Arguments { board, name, .. } = &self.arguments;
                board.actor(role.as_str(), name, ActorState::Running, None);
            }
            Err(problem) => self.restart(role, &problem.to_string()),
        }
        if role == Role::Settler && std::mem::take(&mut self.claimer_waits) {
            let _ = self.myself.cast(Message::Start(Role::Claimer));
        }
    }

    fn child_ended(&mut self, cell: &ActorCell, reason: &str) {
        if self.draining.is_some() {
            // The claimer that was to report is gone: what it had out stays unknown.
            if self.claimer.is(cell) {
                self.claimer.handle.set(None);
                let _ = self.myself.cast(Message::Drained(Drained::default()));
            }
            return;
        }
        if self.settler.is(cell) {
            self.settler.handle.set(None);
            // Outcomes are lost: the claimer reads the table again, once there is a settler.
            if let Some(claimer) = self.claimer.handle.get() {
                self.claimer.handle.set(None);
                claimer.kill();
            }
            self.restart(Role::Settler, reason);
            self.restart(Role::Claimer, "its settler failed");
        } else if self.claimer.is(cell) {
            self.claimer.handle.set(None);
            self.restart(Role::Claimer, reason);
        } else if self.keeper.is(cell) {
            self.keeper.handle.set(None);
            self.restart(Role::Keeper, reason);
        }
    }

    fn restart(&mut self, role: Role, reason: &str) {
        let Arguments {
            name, board, relay, ..
        } = &self.arguments;
        let now = supervisor::now_ms();
        let restarts = match role {
            Role::Settler => &mut self.settler.restarts,
            Role::Claimer => &mut self.claimer.restarts,
            _ => &mut self.keeper.restarts,
        };
        match restarts.failed(rule_of(role), now) {
            Decision::Restart(pause) => {
                relay.telemetry.restart(role.as_str());
                board.actor(
                    role.as_str(),
                    name,
                    ActorState::Restarting,
                    Some(reason.into()),
                );
                error!(database = %name, actor = %role, %reason, ?pause, "actor ended unexpectedly; restarting");
                self.myself.send_after(pause, move || Message::Start(role));
            }
            Decision::Park => {
                board.actor(role.as_str(), name, ActorState::Parked, Some(reason.into()));
                if role != Role::Keeper {
                    board.database_state(name, DatabaseState::Parked, Some(reason.into()));
                }
                error!(database = %name, actor = %role, %reason, "actor crashed too often and stays down; restart the relay when the cause is mended");
            }
        }
    }

    fn drain(&mut self, until: Instant) {
        self.draining = Some(until);
        let sent = self.claimer.handle.send(claimer::Message::Drain(until));
        if !sent {
            let _ = self.myself.cast(Message::Drained(Drained::default()));
        }
    }

    async fn drained(&mut self, report: Drained) {
        let Arguments {
            database,
            relay,
            parent,
            name,
            ..
        } = &self.arguments;
        // Children end with this actor; the source's last words have a limit of their own.
        let source = Arc::clone(&database.source);
        let last_words = async {
            let _ = source.goodbye(relay.instance).await;
            source.close().await;
        };
        if tokio::time::timeout(GOODBYE, last_words).await.is_err() {
            warn!(database = %name, "the database did not take the goodbye in time");
        }
        // The supervisor ends this actor: ending by itself, it would overtake its own report.
        let _ = parent.cast(supervisor::Message::DatabaseDrained(
            Arc::clone(name),
            report,
        ));
    }

    fn settler_arguments(&self) -> settler::Arguments {
        settler::Arguments {
            source: Arc::clone(&self.arguments.database.source),
            keeper: self.keeper.handle.clone(),
            telemetry: self.arguments.relay.telemetry.clone(),
            board: Arc::clone(&self.arguments.board),
            tree: self.arguments.tree.clone(),
        }
    }

    fn keeper_arguments(&self) -> keeper::Arguments {
        let Arguments {
            name,
            database,
            relay,
            ..
        } = &self.arguments;
        keeper::Arguments {
            database: Arc::clone(name),
            source: Arc::clone(&database.source),
            instance: relay.instance,
            retention: relay.retention.clone(),
            sweep_every: database.sweep_every,
            routes: relay.routes.clone(),
            claimer: self.claimer.handle.clone(),
            board: Arc::clone(&self.arguments.board),
            telemetry: relay.telemetry.clone(),
            tree: self.arguments.tree.clone(),
        }
    }

    fn claimer_arguments(&self) -> claimer::Arguments {
        let Arguments {
            name,
            database,
            relay,
            sinks,
            caught_up,
            board,
            tree,
            ..
        } = &self.arguments;
        claimer::Arguments {
            database: Arc::clone(name),
            source: Arc::clone(&database.source),
            sinks: sinks.clone(),
            routes: relay.routes.clone(),
            settings: claimer::Settings {
                instance: relay.instance,
                ttl: relay.lease_ttl,
                guard: database.gap_guard,
                poll_max: database.poll_max,
                fallback: database.fallback,
                quiet_after: database.quiet_after,
                budget_events: database.budget_events,
                budget_bytes: database.budget_bytes,
                max_parked: database.max_parked,
            },
            settler: self.settler.handle.clone(),
            keeper: self.keeper.handle.clone(),
            parent: self.myself.clone(),
            caught_up: caught_up.clone(),
            board: Arc::clone(board),
            telemetry: relay.telemetry.clone(),
            tree: tree.clone(),
        }
    }
}
