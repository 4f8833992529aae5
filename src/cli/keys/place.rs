//! Where one key stands: for each sink its head, what that waits for, and what is behind it.

use serde_json::{Value, json};

use super::{Database, KeyArgs, KeyName, build, known_sink, patiently, refused, target};
use crate::cli::failure::Failure;
use crate::config::Config;
use crate::route::Routes;
use crate::source::Pause;
use crate::source::pause::Target;
use crate::source::waiting::{KeyEvent, MAX_BEHIND, WaitsFor};

/// What a command about one key works on.
pub(super) struct Scene {
    pub(super) database: Database,
    pub(super) key: KeyName,
    /// Only this sink is meant.
    pub(super) sink: Option<String>,
    sinks: Vec<String>,
    routes: Routes,
}

/// Where the key stands for one sink.
pub(super) struct Place {
    pub(super) sink: String,
    /// The first event that the sink is to get.
    pub(super) head: Option<KeyEvent>,
    /// The route of the head.
    pub(super) route: Option<String>,
    /// Events of the key for this sink behind the head, as far as they were looked at.
    pub(super) behind: u64,
    pub(super) behind_bounded: bool,
    /// What holds it back.
    pub(super) pauses: Vec<Pause>,
}

impl Scene {
    pub(super) fn of(config: &Config, args: &KeyArgs) -> Result<Self, Failure> {
        let database = target::one(config, args.database.as_deref())?;
        known_sink(config, args.sink.as_deref())?;
        let sinks = match &args.sink {
            Some(sink) => vec![sink.clone()],
            None => config.sinks.keys().cloned().collect(),
        };
        Ok(Self {
            database,
            key: args.name()?,
            sink: args.sink.clone(),
            sinks,
            routes: build::routes(config),
        })
    }

    /// Looks at every sink.
    pub(super) async fn places(&self) -> Result<Vec<Place>, Failure> {
        let admin = &self.database.admin;
        let failed = |error| refused(&self.database, &error);
        let pauses = patiently(admin.pauses()).await.map_err(failed)?;
        let mut places = Vec::new();
        for sink in &self.sinks {
            let events = patiently(admin.key_events(sink, &self.key, MAX_BEHIND + 1))
                .await
                .map_err(failed)?;
            places.push(place(sink, &self.key, events, &self.routes, &pauses));
        }
        Ok(places)
    }
}

fn place(
    sink: &str,
    key: &KeyName,
    events: Vec<KeyEvent>,
    routes: &Routes,
    pauses: &[Pause],
) -> Place {
    let behind_bounded = events.len() > MAX_BEHIND as usize;
    // Events that no route brings here are not waited for.
    let mut routed = events
        .into_iter()
        .filter(|event| routes.to_sink(&event.kind, sink).is_some());
    let head = routed.next();
    let route = head
        .as_ref()
        .and_then(|head| routes.to_sink(&head.kind, sink))
        .map(|route| route.name.clone());
    Place {
        pauses: pauses_of(pauses, sink, route.as_deref(), key),
        sink: sink.to_owned(),
        head,
        route,
        behind: routed.count() as u64,
        behind_bounded,
    }
}

/// The pauses that hold the key back at this sink.
pub(super) fn pauses_of(
    pauses: &[Pause],
    sink: &str,
    route: Option<&str>,
    key: &KeyName,
) -> Vec<Pause> {
    let holds = |pause: &&Pause| match &pause.target {
        Target::Source => true,
        Target::Sink { name } => name == sink,
        Target::Route { name } => route == Some(name),
        Target::Key { name, sink: of } => {
            matches!(key, KeyName::Named(key) if key == name)
                && of.as_deref().is_none_or(|of| of == sink)
        }
    };
    pauses.iter().filter(holds).cloned().collect()
}

impl Place {
    /// The word for what it waits for.
    pub(super) fn state(&self) -> &'static str {
        match &self.head {
            _ if !self.pauses.is_empty() => "paused",
            None => "idle",
            Some(head) => word(head.waits_for()),
        }
    }

    /// Since when: the first of its pauses, else as [`since`].
    fn since(&self) -> Option<String> {
        let paused = self.pauses.iter().map(|pause| pause.since.clone()).min();
        paused.or_else(|| self.head.as_ref().map(since))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "sink": self.sink,
            "state": self.state(),
            "since": self.since(),
            "head": self.head.as_ref().map(event),
            "route": self.route,
            "behind": self.behind,
            "behind_bounded": self.behind_bounded,
            "pauses": self.pauses,
        })
    }
}

/// A state's word.
pub(super) fn word(waits: WaitsFor) -> &'static str {
    match waits {
        WaitsFor::Turn => "ready",
        WaitsFor::Skip => "skipping",
        WaitsFor::Delay => "delayed",
        WaitsFor::BackOff => "backing_off",
        WaitsFor::Operator => "blocked",
    }
}

/// Since when it waits: its last failure, or its beginning.
pub(super) fn since(event: &KeyEvent) -> String {
    event.failed_at.unwrap_or(event.occurred_at).to_string()
}

/// An event as programs read it.
pub(super) fn event(event: &KeyEvent) -> Value {
    json!({
        "seq": event.seq,
        "id": event.id,
        "kind": event.kind,
        "waits_for": word(event.waits_for()),
        "occurred_at": event.occurred_at.to_string(),
        "due_at": due(event),
        "attempts": event.attempts,
        "last_error": event.last_error,
        "failed_at": event.failed_at.map(|at| at.to_string()),
        "skip": event.skip,
    })
}

/// When it goes by itself; `None` when it may go now, or never by itself.
pub(super) fn due(event: &KeyEvent) -> Option<String> {
    match event.waits_for() {
        WaitsFor::Delay => Some(event.available_at.to_string()),
        WaitsFor::BackOff => event.next_at.map(|at| at.to_string()),
        WaitsFor::Turn | WaitsFor::Skip | WaitsFor::Operator => None,
    }
}
