//! The keeper: one per database. Signs of life, backlog samples, purging, and the call for a sweep.
//!
//! Nothing here is needed to deliver an event; all of it runs as tasks, one at a time, and rests while the
//! database is quiet.

use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef};
use tokio::time::Instant;
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::claimer;
use super::handle::{Handle, Task, guarded};
use super::restart::Role;
use super::tree::{Place, Tree};
use crate::route::Routes;
use crate::source::{Heartbeat, Retention, Source, SourceError};
use crate::status::Board;
use crate::telemetry::Telemetry;

/// How often each thing is done.
const BEAT: Duration = Duration::from_secs(5);
const SAMPLE: Duration = Duration::from_secs(10);
const PURGE: Duration = Duration::from_secs(600);
/// Most rows of one purge statement.
const PURGE_ROWS: u32 = 10_000;
/// Most finished events removed at a time and per route.
const FINISHED_ROWS: u32 = 10_000;
/// How often the keeper looks at its list.
const TICK: Duration = Duration::from_secs(1);

/// What a keeper needs.
#[derive(Clone)]
pub struct Arguments {
    /// The database's name.
    pub database: Arc<str>,
    /// The database.
    pub source: Arc<dyn Source>,
    /// This instance.
    pub instance: Uuid,
    /// How long things are kept.
    pub retention: Retention,
    /// Pause between sweeps.
    pub sweep_every: Duration,
    /// Kinds to sinks, for events that several sinks share.
    pub routes: Routes,
    /// Who sweeps.
    pub claimer: Handle<claimer::Message>,
    /// What is shown.
    pub board: Arc<Board>,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Where the actor is entered.
    pub tree: Tree,
}

/// What the database allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Owner: everything.
    Active,
    /// Signs of life only.
    Standby,
    /// Nothing at all.
    Quiet,
}

/// Messages of a keeper.
#[derive(Debug)]
pub enum Message {
    /// The database's state changed.
    Mode(Mode),
    /// Finished events may be left in the table.
    Leftovers,
    /// Look at the list.
    Tick,
    /// The work under way ended.
    Done,
}

#[cfg(feature = "cluster")]
impl ractor::Message for Message {}

/// State of a keeper.
pub struct State {
    arguments: Arguments,
    myself: ActorRef<Message>,
    /// `None`: nobody has said so yet.
    mode: Option<Mode>,
    host: String,
    ticking: bool,
    working: Option<Task>,
    beat_at: Instant,
    sample_at: Instant,
    purge_at: Instant,
    sweep_at: Instant,
    finished_due: bool,
    _place: Place,
}

/// The actor.
pub struct KeeperActor;

#[ractor::actor(message = Message, state = State, arguments = Arguments)]
impl KeeperActor {
    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let now = Instant::now();
        let mut state = State {
            _place: arguments.tree.enter(
                Role::Keeper,
                arguments.database.to_string(),
                myself.get_cell(),
            ),
            mode: None,
            host: host_name(),
            ticking: false,
            working: None,
            beat_at: now,
            sample_at: now,
            purge_at: now,
            sweep_at: now + arguments.sweep_every,
            finished_due: false,
            myself,
            arguments,
        };
        state.tick_soon(Duration::ZERO);
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Mode(mode) => state.mode(mode),
            Message::Leftovers => state.leftovers(),
            Message::Tick => state.tick(),
            Message::Done => state.done(),
        }
        Ok(())
    }
}

impl State {
    /// What the claimer shows. It says a mode once, and that may have been to a keeper that was just about to die.
    fn shown_mode(&self) -> Option<Mode> {
        use crate::status::DatabaseState as Shown;
        let database = &self.arguments.database;
        match self.arguments.board.database(database, |shown| shown.state) {
            Shown::Active => Some(Mode::Active),
            Shown::Standby => Some(Mode::Standby),
            Shown::Quiet => Some(Mode::Quiet),
            // Of an outage, or between two states: what it was still holds.
            Shown::Starting | Shown::Waiting | Shown::Draining | Shown::Parked => None,
        }
    }

    fn mode(&mut self, mode: Mode) {
        self.turn(mode);
        self.tick_soon(Duration::ZERO);
    }

    fn turn(&mut self, mode: Mode) {
        if self.mode.replace(mode) != Some(mode) {
            self.beat_at = Instant::now();
            self.sample_at = Instant::now();
        }
    }

    fn tick_soon(&mut self, pause: Duration) {
        if !self.ticking && self.mode != Some(Mode::Quiet) {
            self.ticking = true;
            self.myself.send_after(pause, || Message::Tick);
        }
    }

    fn tick(&mut self) {
        self.ticking = false;
        if self.mode != Some(Mode::Quiet)
            && let Some(shown) = self.shown_mode()
        {
            self.turn(shown);
        }
        if self.mode == Some(Mode::Quiet) {
            return;
        }
        let now = Instant::now();
        if self.mode == Some(Mode::Active) && now >= self.sweep_at {
            self.sweep_at = now + self.arguments.sweep_every;
            self.arguments.claimer.send(claimer::Message::Sweep);
            self.finished_due = true;
        }
        if self.working.is_none() && self.mode.is_some() {
            self.work(now);
        }
        let pause = TICK.min(self.arguments.sweep_every);
        self.tick_soon(pause);
    }

    /// Not only an owner's: the late outcome may be that of an owner which is none any more.
    fn leftovers(&mut self) {
        self.finished_due = true;
        self.tick_soon(Duration::ZERO);
    }

    fn done(&mut self) {
        self.working = None;
    }

    /// Does the first thing that is due.
    fn work(&mut self, now: Instant) {
        let active = self.mode == Some(Mode::Active);
        if now >= self.beat_at {
            self.beat_at = now + BEAT;
            self.beat();
        } else if active && now >= self.sample_at {
            self.sample_at = now + SAMPLE;
            self.sample();
        } else if active && now >= self.purge_at {
            self.purge_at = now + PURGE;
            self.purge();
        } else if self.finished_due {
            // Last, so that frequent sweeps leave time for everything else.
            self.finished_due = false;
            self.remove_finished();
        }
    }

    fn spawn(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let myself = self.myself.clone();
        self.working = Some(Task::spawn(async move {
            // A source that panics ends this piece of work, not all that come after it.
            let work = async {
                work.await;
                Ok::<(), SourceError>(())
            };
            if let Err(error) = guarded(work).await {
                warn!(%error, "housekeeping failed");
            }
            let _ = myself.cast(Message::Done);
        }));
    }

    fn beat(&mut self) {
        let Arguments {
            database,
            source,
            board,
            instance,
            ..
        } = self.arguments.clone();
        let host = self.host.clone();
        let report = board.report(&database);
        let listening = board.database(&database, |shown| shown.listening);
        self.spawn(async move {
            let beat = Heartbeat {
                instance,
                host,
                version: env!("CARGO_PKG_VERSION"),
                listening,
                report: serde_json::to_string(&report).unwrap_or_else(|_| "{}".into()),
            };
            if let Err(error) = source.heartbeat(&beat).await {
                debug!(%database, %error, "sign of life could not be written");
            }
        });
    }

    fn sample(&mut self) {
        let Arguments {
            database,
            source,
            board,
            telemetry,
            ..
        } = self.arguments.clone();
        self.spawn(async move {
            match source.backlog().await {
                Ok(backlog) => {
                    telemetry
                        .oldest_ready_age(&database, backlog.oldest_ready_age_s.unwrap_or(0.0));
                    board.database(&database, |shown| {
                        shown.backlog = Some(backlog.events);
                        shown.backlog_bounded = backlog.bounded;
                        shown.oldest_ready_age_s = backlog.oldest_ready_age_s;
                    });
                }
                Err(error) => {
                    // An unknown value is absent, never an old one.
                    board.database(&database, |shown| {
                        shown.backlog = None;
                        shown.oldest_ready_age_s = None;
                    });
                    debug!(%database, %error, "backlog could not be sampled");
                }
            }
        });
    }

    fn purge(&mut self) {
        let Arguments {
            database,
            source,
            retention,
            ..
        } = self.arguments.clone();
        self.spawn(async move {
            let mut removed = 0;
            loop {
                match source.purge(&retention, PURGE_ROWS).await {
                    Ok(0) => break,
                    Ok(count) => removed += count,
                    Err(error) => {
                        warn!(%database, %error, "finished events could not be purged");
                        break;
                    }
                }
            }
            if removed > 0 {
                info!(%database, removed, "purged what is past its retention");
            }
        });
    }

    /// Events that every sink of their route is done with: a settlement that saw only its own part leaves them, and
    /// one under a lease that had ended.
    fn remove_finished(&mut self) {
        let Arguments {
            database,
            source,
            routes,
            ..
        } = self.arguments.clone();
        let shared: Vec<_> = routes
            .iter()
            .map(|route| Arc::clone(&route.sinks))
            .collect();
        self.spawn(async move {
            for sinks in shared {
                if let Err(error) = source.delete_done(&sinks, FINISHED_ROWS).await {
                    debug!(%database, %error, "finished events could not be removed");
                    return;
                }
            }
        });
    }
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
