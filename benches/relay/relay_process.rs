//! The relay's side of a process of its own: does what the lines on its input say, and ends with them.

use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use outboxd::relay::{self, Relay};
use outboxd::sink::Sink;
use outboxd::sink::file::{self, File};
use outboxd::sink::nats::{self, Nats};
use outboxd::source::Source;
use outboxd::source::postgres::{self, Postgres};
use outboxd::source::sqlite::{self, Sqlite};
use outboxd::testing::faults::{Faults, FaultySource};

use crate::it::support::roles;
use crate::poison::Poisoned;
use crate::process::{From, Relayed, To};
use crate::stage::options;

/// Until the input ends.
pub async fn run(relayed: &str) {
    let relayed: Relayed = serde_json::from_str(relayed).unwrap();
    let faults = Faults::default();
    let mut relay: Option<Relay> = None;
    println!("ready");
    loop {
        let line = tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().next());
        let Some(Ok(line)) = line.await.unwrap() else {
            return;
        };
        match line.as_str() {
            "start" => relay = Some(start(&relayed, &faults).await),
            "drained" => relay.as_ref().unwrap().drained().await,
            "calls" => {
                println!("{}", faults.total());
                continue;
            }
            "stop" => {
                relay.take().unwrap().shutdown().await.unwrap();
                println!("stopped");
                return;
            }
            other => panic!("nobody knows what {other} means"),
        }
        println!("{line}");
    }
}

async fn start(relayed: &Relayed, faults: &Faults) -> Relay {
    let mut source = source(relayed);
    if relayed.count {
        source = Arc::new(FaultySource::new(source, faults.clone()));
    }
    let mut sink = sink(&relayed.to);
    if relayed.poison {
        sink = Arc::new(Poisoned(sink));
    }
    relay::start(options(source, sink, relayed.keep))
        .await
        .unwrap()
}

fn source(relayed: &Relayed) -> Arc<dyn Source> {
    let statement_timeout = Duration::from_secs(30);
    match &relayed.from {
        From::Postgres { url, listen } => {
            let options = postgres::Options {
                keep: relayed.keep,
                listen: *listen,
                statement_timeout,
                ..roles::options(url)
            };
            Arc::new(Postgres::new(options).unwrap())
        }
        From::Sqlite { path } => Arc::new(
            Sqlite::new(sqlite::Options {
                name: "orders".into(),
                path: path.into(),
                keep: relayed.keep,
                shards: 16,
                statement_timeout,
            })
            .unwrap(),
        ),
    }
}

fn sink(to: &To) -> Arc<dyn Sink> {
    match to {
        To::File { path } => Arc::new(File::new(file::Options { path: path.into() })),
        To::Nats { url, mode } => {
            let options = nats::Options {
                mode: *mode,
                ..nats::Options::new("events", url, "EVENTS", "events.{kind}")
            };
            Arc::new(Nats::new(options).unwrap())
        }
    }
}
