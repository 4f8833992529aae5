//! `outboxd demo`: the real thing in small. A temporary outbox, an application that writes to it, the
//! relay with its whole tree, and standard output as the sink.
//!
//! Events go to standard output, the story to standard error. The demo checks what it claims: everything
//! committed came, nothing rolled back did, each key in order, the poison event set aside.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use uuid::Uuid;

use super::failure::{Failure, in_words};
use super::output::say;
use super::signals::Signals;
use crate::config::{Config, Database, List, Log, Route, Secret, Sink, SinkType, build};
use crate::relay;
use crate::source::admin::{Admin, Discarded, DiscardedFilter};
use crate::telemetry::Telemetry;

mod witness;
mod writer;

use witness::{Facts, Seen, Witness};
use writer::{Inserted, Transaction, Writer};

/// Pause between transactions, so that a person can watch.
const PACE: Duration = Duration::from_millis(150);

/// Pause between two looks at what has been delivered.
const LOOK: Duration = Duration::from_millis(20);

/// Without any progress for this long the demo gives up.
const STUCK: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outboxd demo                                        watch for a few seconds
  outboxd demo --events 1000 --exit-when-drained      as fast as it goes, for scripts
  outboxd demo 2>/dev/null | head -3                  only the events")]
pub(super) struct DemoArgs {
    /// Events to commit.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    events: u64,
    /// Ordering keys to spread them over.
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    keys: u64,
    /// Write without pauses and end as soon as everything is delivered.
    #[arg(long)]
    exit_when_drained: bool,
}

pub(super) async fn run(args: &DemoArgs) -> Result<(), Failure> {
    crate::logging::start(&Log {
        // The story tells what the log would; RUST_LOG brings the log back.
        level: "off".to_owned(),
        ..Log::default()
    });
    let mut signals = Signals::take()?;
    let directory = tempfile::Builder::new()
        .prefix("outboxd-demo-")
        .tempdir()
        .map_err(|error| Failure::failed(format!("no temporary directory: {error}")))?;
    let path = directory.path().join("orders.db");
    say(format_args!(
        "demo    {} events for {} orders, through an outbox in {}\ndemo    the application only inserts rows; \
         the relay is the one that `outboxd run` starts",
        args.events,
        args.keys,
        path.display()
    ));
    let config = config(&path);
    let (relay, admin, seen) = start(&config).await?;
    let writer = Writer::open(&path, args.events, args.keys)
        .await
        .map_err(|error| refused_by_writer(&error))?;
    let mut story = Story::new(Arc::clone(&seen), admin);
    let died = async {
        match relay.stopped().await {
            Ok(()) => "the relay ended by itself".to_owned(),
            Err(error) => in_words(&error),
        }
    };
    let pause = if args.exit_when_drained {
        Duration::ZERO
    } else {
        PACE
    };
    let ended = tokio::select! {
        told = story.tell(writer, pause) => told.map(|()| true),
        words = died => Err(Failure::failed(words)),
        () = seen.unread() => {
            say(format_args!("demo    nobody reads standard output any more: ending early"));
            Ok(false)
        }
        signal = signals.first() => {
            say(format_args!("demo    {signal}: ending early"));
            Ok(false)
        }
    };
    let stopped = relay.shutdown().await;
    let complete = ended?;
    stopped.map_err(|error| Failure::failed(in_words(&error)))?;
    story.sum_up(complete).await
}

fn refused_by_writer(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::failed(format!("the demo's application: {}", in_words(error)))
}

/// What a configuration file would say.
fn config(path: &Path) -> Config {
    let mut config = Config::default();
    config.databases.insert(
        "orders".to_owned(),
        Database {
            url: Some(Secret(format!("sqlite:{}", path.display()).into())),
            ..Database::default()
        },
    );
    config.sinks.insert(
        "stdout".to_owned(),
        Sink {
            kind: Some(SinkType::Stdout),
            ..Sink::default()
        },
    );
    config.routes.insert(
        "all".to_owned(),
        Route {
            kinds: List(vec!["*".to_owned()]),
            sinks: List(vec!["stdout".to_owned()]),
            ..Route::default()
        },
    );
    config
}

/// Creates the outbox and starts the relay on it.
async fn start(config: &Config) -> Result<(relay::Relay, Arc<dyn Admin>, Arc<Seen>), Failure> {
    let admin = build::outbox("orders", &config.databases["orders"], config)?.admin;
    admin
        .migrate()
        .await
        .map_err(|error| Failure::database("orders", &error))?;
    say(format_args!("outbox  created, as `outboxd migrate` does"));
    let mut options = build::options(config, Telemetry::none())?;
    let mut seen = None;
    for sink in &mut options.sinks {
        let (witness, facts) = Witness::around(Arc::clone(&sink.sink));
        sink.sink = Arc::new(witness);
        seen = Some(facts);
    }
    let seen = seen.ok_or_else(|| Failure::failed("the demo has no sink"))?;
    let relay = relay::start(options)
        .await
        .map_err(|error| Failure::failed(in_words(&error)))?;
    Ok((relay, admin, seen))
}

/// What happens, told and remembered.
struct Story {
    seen: Arc<Seen>,
    admin: Arc<dyn Admin>,
    committed: Vec<Inserted>,
    rolled_back: u64,
    discarded: Vec<Discarded>,
}

impl Story {
    fn new(seen: Arc<Seen>, admin: Arc<dyn Admin>) -> Self {
        Self {
            seen,
            admin,
            committed: Vec::new(),
            rolled_back: 0,
            discarded: Vec::new(),
        }
    }

    /// Writes everything and waits until all of it is delivered or set aside.
    async fn tell(&mut self, mut writer: Writer, pause: Duration) -> Result<(), Failure> {
        let refused = |error| refused_by_writer(&error);
        while let Some(transaction) = writer.transaction().await.map_err(refused)? {
            self.note(transaction);
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        drop(writer);
        say(format_args!(
            "writer  done: {} events committed, {} rolled back",
            self.committed.len(),
            self.rolled_back
        ));
        self.settle().await
    }

    fn note(&mut self, transaction: Transaction) {
        let count = transaction.events.len();
        if !transaction.committed {
            self.rolled_back += count as u64;
            // Enough to make the point; a long run need not repeat it.
            if self.rolled_back <= 9 {
                say(format_args!(
                    "writer  transaction {} rolled back: {count} event{} that must never come",
                    transaction.number,
                    if count == 1 { "" } else { "s" }
                ));
            }
            return;
        }
        for event in transaction.events.iter().filter(|event| event.poison) {
            say(format_args!(
                "writer  event {} of {} is poison: it carries a header that only the relay may set",
                event.seq, event.key
            ));
        }
        self.committed.extend(transaction.events);
    }

    fn poison(&self) -> u64 {
        self.committed.iter().filter(|event| event.poison).count() as u64
    }

    async fn settle(&mut self) -> Result<(), Failure> {
        let expected = self.committed.len() as u64 - self.poison();
        let mut progress = (0, Instant::now());
        loop {
            let delivered = self.seen.delivered();
            if delivered != progress.0 {
                progress = (delivered, Instant::now());
            }
            if delivered >= expected && self.outbox_is_empty().await? {
                return Ok(());
            }
            if progress.1.elapsed() > STUCK {
                return Err(Failure::failed(format!(
                    "no progress for {} s: {delivered} of {expected} events delivered (does anybody read \
                     standard output?)",
                    STUCK.as_secs()
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn outbox_is_empty(&mut self) -> Result<bool, Failure> {
        let refused = |error| Failure::database("orders", &error);
        let status = self.admin.status().await.map_err(refused)?;
        Ok(status.backlog.events == 0)
    }

    /// Says what came of it, and fails if it is not what was promised.
    async fn sum_up(&mut self, complete: bool) -> Result<(), Failure> {
        self.discarded = self
            .admin
            .discarded(&DiscardedFilter::default(), 10)
            .await
            .map_err(|error| Failure::database("orders", &error))?;
        for event in &self.discarded {
            say(format_args!(
                "relay   set aside, its key went on: event {} of {}, {} ({}): {}",
                event.seq,
                event.ordering_key.as_deref().unwrap_or("no key"),
                event.reason,
                event.code.as_deref().unwrap_or("no code"),
                event.last_error
            ));
        }
        let facts = self.seen.facts();
        let broken = self.broken_promises(&facts, complete);
        say(format_args!(
            "demo    {} delivered, {} set aside, {} repeated; {} orders, each in its own order: {}",
            facts.delivered,
            self.discarded.len(),
            facts.repeats,
            facts.by_key.len(),
            if broken.is_empty() { "checked" } else { "NO" }
        ));
        if !broken.is_empty() {
            return Err(Failure::failed(broken.join("; ")));
        }
        say(format_args!(
            "demo    next: config/postgres-nats.toml is a small real configuration; with it\n          outboxd \
             --config FILE migrate    creates the outbox\n          outboxd --config FILE check      looks \
             whether everything is in place\n          outboxd --config FILE run        delivers"
        ));
        Ok(())
    }

    /// What was promised and did not happen.
    fn broken_promises(&self, facts: &Facts, complete: bool) -> Vec<String> {
        let mut broken = Vec::new();
        let expected: BTreeMap<Uuid, &str> = self
            .committed
            .iter()
            .filter(|event| !event.poison)
            .map(|event| (event.id, event.key.as_str()))
            .collect();
        for (key, deliveries) in &facts.by_key {
            if !deliveries.is_sorted_by_key(|(seq, _)| *seq) {
                broken.push(format!("{key} was not delivered in order"));
            }
            let known = |(_, id): &(i64, Uuid)| expected.get(id) == Some(&key.as_str());
            if !deliveries.iter().all(known) {
                broken.push(format!("{key}: an event came that was never committed"));
            }
        }
        if complete {
            if facts.delivered != expected.len() as u64 {
                let count = expected.len();
                broken.push(format!("{} events delivered, not {count}", facts.delivered));
            }
            let poison = self.committed.iter().filter(|event| event.poison);
            let poison: BTreeSet<Uuid> = poison.map(|event| event.id).collect();
            let aside: BTreeSet<Uuid> = self.discarded.iter().map(|event| event.id).collect();
            if poison != aside {
                broken
                    .push("the poison event, and nothing else, should have been set aside".into());
            }
        }
        broken
    }
}
