//! `outboxd status`: what is pending, who delivers it, what was set aside.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;

use super::failure::{Code, Failure, about, in_words, within};
use super::output::{Output, age, no_route, safe, say, table};
use super::{Global, target};
use crate::config::Config;
use crate::source::admin::{InstanceView, Status};
use crate::source::{LeaseView, Pause};
use crate::status::{DatabaseState, Gate, Snapshot};

#[derive(Debug, Args)]
#[command(after_help = "\
States: active (delivering), standby (another instance delivers), waiting (an outage, or something to put
right), quiet (idle, asleep), starting, draining, parked (given up after crashes: restart it), stopped (no
instance has given a sign of life), unreachable (this command could not look).")]
pub(super) struct StatusArgs {
    /// Only this database (a name from the configuration).
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    databases: Vec<Database>,
    feeds: Vec<Feed>,
}

#[derive(Debug, Serialize)]
struct Database {
    name: String,
    state: &'static str,
    reason: Option<String>,
    backlog: Option<u64>,
    /// The count stopped at its bound: `backlog` is a floor.
    backlog_bounded: bool,
    oldest_ready_age_s: Option<f64>,
    /// What operators hold back.
    paused: Vec<Pause>,
    leases: Vec<LeaseView>,
    instances: Vec<InstanceView>,
    /// Pending kinds that no route takes, at most a few.
    unrouted: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Feed {
    database: String,
    sink: String,
    /// `None` when no instance says.
    gate: Option<Gate>,
    mode: Option<String>,
    reason: Option<String>,
    in_flight: u64,
    parked: u64,
    discarded: u64,
}

pub(super) async fn run(global: &Global, args: &StatusArgs, out: &Output) -> Result<(), Failure> {
    let loaded = global.load_for_command()?;
    let mut report = Report::default();
    let mut worst = None;
    for target in target::all(&loaded.config, args.database.as_deref())? {
        match target::patiently(target.admin.status()).await {
            Ok(status) => add(&mut report, &target.name, status, &loaded.config),
            Err(error) => {
                let words = in_words(&error);
                say(format_args!(
                    "error: {}",
                    about("database", &target.name, &words)
                ));
                let code = Code::of(&error);
                if worst != Some(Code::Database) {
                    worst = Some(code);
                }
                let state = match code {
                    Code::Database => "unreachable",
                    _ => "waiting",
                };
                report.databases.push(Database {
                    reason: Some(within("database", &target.name, &words)),
                    name: target.name,
                    state,

                    backlog: None,
                    backlog_bounded: false,
                    oldest_ready_age_s: None,
                    paused: Vec::new(),
                    leases: Vec::new(),
                    instances: Vec::new(),
                    unrouted: Vec::new(),
                });
            }
        }
    }
    out.write(&report, in_tables)?;
    worst.map_or(Ok(()), |code| Err(Failure::said(code)))
}

fn add(report: &mut Report, name: &str, status: Status, config: &Config) {
    // A report of another version may lack fields or be none at all; what can be read is shown.
    let reports: Vec<Snapshot> = status
        .instances
        .iter()
        .filter_map(|instance| serde_json::from_value(instance.report.clone()).ok())
        .collect();
    report.feeds.extend(feeds(name, &status, &reports, config));
    let (state, reason) = state(name, &status, &reports);
    report.databases.push(Database {
        name: name.to_owned(),
        state,
        reason,
        backlog: Some(status.backlog.events),
        backlog_bounded: status.backlog.bounded,
        oldest_ready_age_s: status.backlog.oldest_ready_age_s,
        paused: status.pauses,
        leases: status.leases,
        instances: status.instances,
        unrouted: unrouted(name, &reports),
    });
}

/// The state of a database is that of the instance that does most for it.
fn state(name: &str, status: &Status, reports: &[Snapshot]) -> (&'static str, Option<String>) {
    let best = reports
        .iter()
        .flat_map(|report| &report.databases)
        .filter(|database| database.name == name)
        .min_by_key(|database| rank(database.state));
    match best {
        Some(database) => (word(database.state), database.why().map(str::to_owned)),
        None if status.instances.is_empty() => (
            "stopped",
            Some("no instance has given a sign of life".into()),
        ),
        None => (word(DatabaseState::Starting), None),
    }
}

/// What the instances say that no route takes.
fn unrouted(name: &str, reports: &[Snapshot]) -> Vec<String> {
    let own = reports
        .iter()
        .flat_map(|report| &report.databases)
        .filter(|database| database.name == name);
    let kinds: BTreeSet<&String> = own.flat_map(|database| &database.unrouted).collect();
    kinds.into_iter().cloned().collect()
}

fn rank(state: DatabaseState) -> u8 {
    match state {
        DatabaseState::Active => 0,
        DatabaseState::Draining => 1,
        DatabaseState::Quiet => 2,
        DatabaseState::Waiting => 3,
        DatabaseState::Parked => 4,
        DatabaseState::Starting => 5,
        DatabaseState::Standby => 6,
    }
}

fn word(state: DatabaseState) -> &'static str {
    match state {
        DatabaseState::Starting => "starting",
        DatabaseState::Standby => "standby",
        DatabaseState::Active => "active",
        DatabaseState::Waiting => "waiting",
        DatabaseState::Quiet => "quiet",
        DatabaseState::Draining => "draining",
        DatabaseState::Parked => "parked",
    }
}

/// One feed per configured sink, and per sink that has discarded events though it is gone.
fn feeds(name: &str, status: &Status, reports: &[Snapshot], config: &Config) -> Vec<Feed> {
    let mut sinks: Vec<&str> = config.sinks.keys().map(String::as_str).collect();
    for gone in &status.discarded {
        if !sinks.contains(&gone.sink.as_str()) {
            sinks.push(&gone.sink);
        }
    }
    let feed = |sink: &str| {
        let own = || {
            reports
                .iter()
                .flat_map(|report| &report.feeds)
                .filter(move |feed| feed.database == name && feed.sink == sink)
        };
        let shown = reports
            .iter()
            .flat_map(|report| &report.sinks)
            .filter(|found| found.name == sink)
            .min_by_key(|found| found.gate as u8);
        let discarded = status.discarded.iter().find(|count| count.sink == sink);
        Feed {
            database: name.to_owned(),
            sink: sink.to_owned(),
            gate: shown.map(|sink| sink.gate),
            mode: shown.map(|sink| sink.mode.clone()),
            reason: shown.and_then(|sink| sink.reason.clone()),
            in_flight: own().map(|feed| feed.in_flight).sum(),
            parked: own().map(|feed| feed.parked).sum(),
            discarded: discarded.map_or(0, |count| count.count),
        }
    };
    sinks.into_iter().map(feed).collect()
}

fn in_tables(report: &Report) -> String {
    let databases: Vec<Vec<String>> = report.databases.iter().map(database_row).collect();
    let head = [
        "DATABASE",
        "STATE",
        "PENDING",
        "OLDEST DUE",
        "SHARDS",
        "INSTANCES",
        "WORDS",
    ];
    let mut text = table(&head, &databases);
    if !report.feeds.is_empty() {
        let feeds: Vec<Vec<String>> = report.feeds.iter().map(feed_row).collect();
        let head = [
            "FEED",
            "GATE",
            "MODE",
            "IN FLIGHT",
            "PARKED KEYS",
            "DISCARDED",
            "WORDS",
        ];
        text.push('\n');
        text.push_str(&table(&head, &feeds));
    }
    for database in &report.databases {
        text.push_str(&paused(database));
        for kind in &database.unrouted {
            text.push_str(&no_route(&database.name, kind));
        }
    }
    text
}

/// What operators hold back: it is no outage, and nobody else will say so.
fn paused(database: &Database) -> String {
    const SHOWN: usize = 20;
    let mut text = String::new();
    for pause in database.paused.iter().take(SHOWN) {
        let line = format!("{}: {pause}", database.name);
        text.push_str(&format!("\n{}", safe(&line)));
    }
    let more = database.paused.len().saturating_sub(SHOWN);
    if more > 0 {
        text.push_str(&format!(
            "\n{}: and {more} more; see `outboxd keys list`",
            database.name
        ));
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn database_row(database: &Database) -> Vec<String> {
    let held = database
        .leases
        .iter()
        .filter(|lease| lease.owner.is_some() && lease.expires_in_s > 0.0)
        .count();
    let more = if database.backlog_bounded { "+" } else { "" };
    vec![
        database.name.clone(),
        database.state.to_owned(),
        database
            .backlog
            .map_or_else(|| "?".to_owned(), |events| format!("{events}{more}")),
        database
            .oldest_ready_age_s
            .map_or_else(|| "-".to_owned(), age),
        format!("{held}/{}", database.leases.len()),
        database.instances.len().to_string(),
        safe(database.reason.as_deref().unwrap_or_default()),
    ]
}

fn feed_row(feed: &Feed) -> Vec<String> {
    let gate = match feed.gate {
        Some(Gate::Open) => "open",
        Some(Gate::Closed) => "closed",
        Some(Gate::Probing) => "probing",
        None => "?",
    };
    vec![
        format!("{} -> {}", feed.database, feed.sink),
        gate.to_owned(),
        feed.mode
            .clone()
            .filter(|mode| !mode.is_empty())
            .unwrap_or_else(|| "?".to_owned()),
        feed.in_flight.to_string(),
        feed.parked.to_string(),
        feed.discarded.to_string(),
        safe(feed.reason.as_deref().unwrap_or_default()),
    ]
}
