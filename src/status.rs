//! What a running relay shows: a board that the actors write and that HTTP, heartbeats and tests read.
//!
//! The board holds facts, not decisions: nothing in the relay branches on it. Writers keep their updates
//! short (one lock, no waiting), readers get a copy.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long the tree may go without a beat before [`Board::live`] turns false.
pub const BEAT_LIMIT: Duration = Duration::from_secs(30);

/// The live state of one relay. Shared as `Arc<Board>`.
#[derive(Debug)]
pub struct Board {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    databases: BTreeMap<String, Database>,
    sinks: BTreeMap<String, Sink>,
    feeds: BTreeMap<(String, String), Feed>,
    actors: BTreeMap<(String, String), Actor>,
    draining: bool,
    beat: Instant,
}

impl Board {
    /// A board on which every database is starting and every gate closed. `sinks` are (name, type).
    pub fn new(databases: &[&str], sinks: &[(&str, &str)]) -> Self {
        let mut inner = Inner {
            databases: BTreeMap::new(),
            sinks: BTreeMap::new(),
            feeds: BTreeMap::new(),
            actors: BTreeMap::new(),
            draining: false,
            beat: Instant::now(),
        };
        for (name, kind) in sinks {
            inner.sink(name).kind = (*kind).to_owned();
        }
        for database in databases {
            inner.database(database);
            for (sink, _) in sinks {
                inner.feed(database, sink);
            }
        }
        Self {
            inner: Mutex::new(inner),
        }
    }

    /// Changes what is shown of a database. Returns what `update` returns.
    pub fn database<R>(&self, name: &str, update: impl FnOnce(&mut Database) -> R) -> R {
        update(self.lock().database(name))
    }

    /// Sets a database's state; true when it is another one than before, so that a change is logged once.
    pub fn database_state(&self, name: &str, state: DatabaseState, reason: Option<String>) -> bool {
        self.database(name, |database| {
            let changed = database.state != state;
            database.state = state;
            database.reason = reason;
            changed
        })
    }

    /// Why outcomes cannot be written to a database that works otherwise; `None`: they are.
    pub fn unwritten(&self, name: &str, why: Option<String>) {
        self.database(name, |database| database.unwritten = why);
    }

    /// Changes what is shown of a sink. Returns what `update` returns.
    pub fn sink<R>(&self, name: &str, update: impl FnOnce(&mut Sink) -> R) -> R {
        update(self.lock().sink(name))
    }

    /// Sets a sink's gate; true when it is another one than before.
    pub fn gate(&self, sink: &str, gate: Gate, reason: Option<String>) -> bool {
        self.sink(sink, |sink| {
            let changed = sink.gate != gate;
            sink.gate = gate;
            sink.reason = reason;
            changed
        })
    }

    /// Changes what is shown of a feed. Its gate and mode are the sink's and are filled in when read.
    pub fn feed<R>(&self, database: &str, sink: &str, update: impl FnOnce(&mut Feed) -> R) -> R {
        update(self.lock().feed(database, sink))
    }

    /// Changes what is shown of a feed, if it is one of this relay's.
    pub fn known_feed(&self, database: &str, sink: &str, update: impl FnOnce(&mut Feed)) {
        let at = (database.to_owned(), sink.to_owned());
        if let Some(feed) = self.lock().feeds.get_mut(&at) {
            update(feed);
        }
    }

    /// Sets an actor's state. `kind` is the role (`publisher`, `claimer`, …), `name` what it is for (a
    /// sink or a database). A restart is counted when the state turns to [`ActorState::Restarting`].
    pub fn actor(&self, kind: &str, name: &str, state: ActorState, reason: Option<String>) {
        let mut inner = self.lock();
        let actor = inner
            .actors
            .entry((kind.to_owned(), name.to_owned()))
            .or_insert_with(|| Actor {
                kind: kind.to_owned(),
                name: name.to_owned(),
                state: ActorState::Running,
                restarts: 0,
                reason: None,
            });
        if state == ActorState::Restarting {
            actor.restarts += 1;
        }
        actor.state = state;
        actor.reason = reason;
    }

    /// The shutdown has begun: the relay is no longer ready.
    pub fn draining(&self) {
        self.lock().draining = true;
    }

    /// A sign of life of the tree. The supervisor gives one every few seconds.
    pub fn beat(&self) {
        self.lock().beat = Instant::now();
    }

    /// Does the tree make progress? False when no beat came for [`BEAT_LIMIT`].
    pub fn live(&self) -> bool {
        self.lock().beat.elapsed() < BEAT_LIMIT
    }

    /// Everything that keeps the relay from delivering now; empty means ready. A standby and a quiet
    /// database are ready: both are as they should be.
    pub fn ready(&self) -> Vec<Problem> {
        let inner = self.lock();
        let mut problems = Vec::new();
        if inner.draining {
            problems.push(Problem::new("relay", "outboxd", "shutting down"));
        }
        for database in inner.databases.values() {
            let fallback = match database.state {
                DatabaseState::Active if database.unwritten.is_some() => "",
                DatabaseState::Active | DatabaseState::Standby | DatabaseState::Quiet => continue,
                DatabaseState::Starting => "not opened yet",
                DatabaseState::Waiting => "cannot be used now",
                DatabaseState::Draining => "shutting down",
                DatabaseState::Parked => "stopped after repeated crashes",
            };
            let reason = database.why().unwrap_or(fallback);
            problems.push(Problem::new("database", &database.name, reason));
        }
        for sink in inner.sinks.values() {
            let fallback = match sink.gate {
                Gate::Open => continue,
                Gate::Closed => "not connected",
                Gate::Probing => "not reliable yet: trying single events",
            };
            let reason = sink.reason.as_deref().unwrap_or(fallback);
            problems.push(Problem::new("sink", &sink.name, reason));
        }
        for actor in inner.actors.values() {
            if actor.state == ActorState::Parked {
                let reason = actor
                    .reason
                    .as_deref()
                    .unwrap_or("stopped after repeated crashes");
                let name = format!("{} {}", actor.kind, actor.name);
                problems.push(Problem::new("actor", &name, reason));
            }
        }
        problems
    }

    /// What operators hold back, as (database, words). That is no outage: the relay is ready all the same.
    pub fn paused(&self) -> Vec<Held> {
        let inner = self.lock();
        let held = inner.databases.values().flat_map(|database| {
            database.paused.iter().map(|words| Held {
                database: database.name.clone(),
                words: words.clone(),
            })
        });
        held.collect()
    }

    /// A copy of everything.
    pub fn snapshot(&self) -> Snapshot {
        let inner = self.lock();
        Snapshot {
            databases: inner.databases.values().cloned().collect(),
            sinks: inner.sinks.values().cloned().collect(),
            feeds: inner
                .feeds
                .values()
                .map(|feed| inner.with_gate(feed))
                .collect(),
            actors: inner.actors.values().cloned().collect(),
        }
    }

    /// The part of the snapshot that concerns one database, for its heartbeat.
    pub fn report(&self, database: &str) -> Snapshot {
        let mut all = self.snapshot();
        all.databases.retain(|item| item.name == database);
        all.feeds.retain(|item| item.database == database);
        all
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // An update that panicked leaves one value half written at worst; showing it beats dying of it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn database(&mut self, name: &str) -> &mut Database {
        self.databases
            .entry(name.to_owned())
            .or_insert_with(|| Database {
                name: name.to_owned(),
                ..Database::default()
            })
    }

    fn sink(&mut self, name: &str) -> &mut Sink {
        self.sinks.entry(name.to_owned()).or_insert_with(|| Sink {
            name: name.to_owned(),
            ..Sink::default()
        })
    }

    fn feed(&mut self, database: &str, sink: &str) -> &mut Feed {
        self.feeds
            .entry((database.to_owned(), sink.to_owned()))
            .or_insert_with(|| Feed {
                database: database.to_owned(),
                sink: sink.to_owned(),
                ..Feed::default()
            })
    }

    fn with_gate(&self, feed: &Feed) -> Feed {
        let mut feed = feed.clone();
        if let Some(sink) = self.sinks.get(&feed.sink) {
            feed.gate = sink.gate;
            feed.mode.clone_from(&sink.mode);
        }
        feed
    }
}

/// Everything a board shows, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Databases, by name.
    pub databases: Vec<Database>,
    /// Sinks, by name.
    pub sinks: Vec<Sink>,
    /// Feeds, by database and sink.
    pub feeds: Vec<Feed>,
    /// Actors of the tree that live as long as it does, by role and name.
    pub actors: Vec<Actor>,
}

/// A database as shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Database {
    /// Name from configuration.
    pub name: String,
    /// What it is doing.
    pub state: DatabaseState,
    /// Why, where the state alone does not say it.
    pub reason: Option<String>,
    /// Why outcomes cannot be written, though all else works.
    pub unwritten: Option<String>,
    /// Pending events at the last sample; a floor when `backlog_bounded`.
    pub backlog: Option<u64>,
    /// The sample's count stopped at its bound.
    pub backlog_bounded: bool,
    /// Age of the oldest due event at the last sample, in seconds; `None` when nothing was due.
    pub oldest_ready_age_s: Option<f64>,
    /// Shards this instance holds.
    pub leases: Vec<HeldLease>,
    /// The wake-up channel is open.
    pub listening: bool,
    /// Pending kinds that no route takes, at most a few.
    pub unrouted: Vec<String>,
    /// What operators hold back, in words; of keys only their number. The owner shows it.
    pub paused: Vec<String>,
}

impl Database {
    /// Why it is in its state, or does not do all that its state says.
    pub fn why(&self) -> Option<&str> {
        self.reason.as_deref().or(self.unwritten.as_deref())
    }
}

/// A shard this instance holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLease {
    /// Slice of the keys.
    pub shard: u16,
    /// Fence.
    pub token: i64,
}

/// What a database is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatabaseState {
    /// Not opened yet.
    #[default]
    Starting,
    /// Another instance owns the shards; this one takes over when it ends.
    Standby,
    /// Reading and delivering.
    Active,
    /// An outage, or something an operator has to put right: tried again by itself.
    Waiting,
    /// Idle for long: leases released, no statements.
    Quiet,
    /// Shutting down.
    Draining,
    /// Given up after repeated crashes.
    Parked,
}

/// A sink as shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sink {
    /// Name from configuration.
    pub name: String,
    /// Type from configuration.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether events pass.
    pub gate: Gate,
    /// Why the gate is not open.
    pub reason: Option<String>,
    /// How order is kept at the moment: `single`, …
    pub mode: String,
}

/// Whether events pass to a sink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gate {
    /// They pass.
    Open,
    /// Nothing passes: no connection, or the sink refuses.
    #[default]
    Closed,
    /// Single events pass, to see whether the sink is back.
    Probing,
}

/// A feed as shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Feed {
    /// Database.
    pub database: String,
    /// Sink.
    pub sink: String,
    /// The sink's gate.
    pub gate: Gate,
    /// How order is kept at the moment.
    pub mode: String,
    /// Events handed over and not yet answered.
    pub in_flight: u64,
    /// Keys parked: backing off, delayed, blocked, or paused.
    pub parked: u64,
    /// Events discarded since the relay started.
    pub discarded: u64,
    /// Events published since the relay started.
    pub published: u64,
}

/// An actor as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Role.
    pub kind: String,
    /// What it is for.
    pub name: String,
    /// State.
    pub state: ActorState,
    /// Restarts since the relay started.
    pub restarts: u64,
    /// The last failure.
    pub reason: Option<String>,
}

/// The state of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActorState {
    /// As it should be.
    Running,
    /// It crashed and comes back after a back-off.
    Restarting,
    /// It crashed too often and stays down.
    Parked,
}

/// Something that keeps the relay from delivering.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// `relay`, `database`, `sink` or `actor`.
    pub part: &'static str,
    /// Which one.
    pub name: String,
    /// Why, in words.
    pub reason: String,
}

/// Something that operators hold back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// In which database.
    pub database: String,
    /// What, by whom, since when, and why.
    pub words: String,
}

impl Problem {
    fn new(part: &'static str, name: &str, reason: &str) -> Self {
        Self {
            part,
            name: name.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_board_is_live_but_not_ready_and_says_why() {
        let board = Board::new(&["orders"], &[("events", "nats")]);
        assert!(board.live());
        let parts: Vec<_> = board
            .ready()
            .into_iter()
            .map(|p| (p.part, p.name))
            .collect();
        assert_eq!(
            parts,
            [("database", "orders".into()), ("sink", "events".into())]
        );
    }

    #[test]
    fn ready_when_databases_work_and_gates_are_open_until_the_drain() {
        let board = Board::new(&["orders"], &[("events", "nats")]);
        assert!(board.database_state("orders", DatabaseState::Active, None));
        assert!(!board.database_state("orders", DatabaseState::Active, None));
        assert!(board.gate("events", Gate::Open, None));
        assert_eq!(board.ready(), []);
        board.actor("keeper", "orders", ActorState::Parked, Some("boom".into()));
        assert_eq!(board.ready()[0].reason, "boom");
        board.actor("keeper", "orders", ActorState::Running, None);
        board.draining();
        assert_eq!(board.ready()[0].reason, "shutting down");
    }

    #[test]
    fn feeds_show_the_gate_of_their_sink_and_reports_only_their_database() {
        let board = Board::new(&["a", "b"], &[("events", "nats")]);
        board.gate("events", Gate::Probing, None);
        board.feed("a", "events", |feed| feed.in_flight = 3);
        let report = board.report("a");
        assert_eq!(report.databases.len(), 1);
        assert_eq!(report.feeds.len(), 1);
        assert_eq!(report.feeds[0].gate, Gate::Probing);
        assert_eq!(report.feeds[0].in_flight, 3);
        let text = serde_json::to_string(&report).expect("serializes");
        assert_eq!(
            serde_json::from_str::<Snapshot>(&text).expect("parses"),
            report
        );
    }
}
