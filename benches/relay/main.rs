//! Measures the relay: rate, latency, and what they cost, beside what the two ends can do by themselves.
//!
//! ```sh
//! cargo bench --bench relay                    # everything, three rounds
//! cargo bench --bench relay -- --rounds 5 pg   # only measurements whose name contains "pg"
//! cargo bench --bench relay -- --events 20000
//! ```
//!
//! It starts its own PostgreSQL and nats-server. All of it shares one machine with the relay, so each figure
//! comes with the processor time of each process and with what everybody else used meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub
)]

mod backlog;
mod ceilings;
mod cpu;
mod latency;
mod report;
mod stage;

// The servers of the integration tests.
#[path = "../../tests/it"]
mod it {
    pub mod support;
}

use std::time::Duration;

use outboxd::source::PublishedKeep;

use report::Report;
use stage::{Keys, Stage};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Arguments {
    rounds: usize,
    events: u32,
    statements: bool,
    only: Vec<String>,
}

fn main() {
    let arguments = arguments();
    // Log output as the binary has it, so that spans and events cost what they cost there.
    outboxd::logging::start(&outboxd::config::Log {
        level: "info,sqlx=error".to_owned(),
        ..outboxd::config::Log::default()
    });
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(measure(&arguments));
}

fn arguments() -> Arguments {
    let mut arguments = Arguments {
        rounds: 3,
        events: 50_000,
        statements: false,
        only: Vec::new(),
    };
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        let mut number = || given.next().and_then(|n| n.parse().ok()).expect("a number");
        match word.as_str() {
            // From cargo.
            "--bench" => {}
            "--statements" => arguments.statements = true,
            "--rounds" => arguments.rounds = number() as usize,
            "--events" => arguments.events = number(),
            name => arguments.only.push(name.to_owned()),
        }
    }
    arguments
}

async fn measure(arguments: &Arguments) {
    let mut report = Report::new(arguments.events);
    let wanted = |name: &str| {
        arguments.only.is_empty()
            || arguments
                .only
                .iter()
                .any(|only| name.contains(only.as_str()))
    };
    report::conditions(arguments.events, arguments.rounds);
    let stage = Stage::start(arguments.statements).await;
    let events = arguments.events;
    for round in 1..=arguments.rounds {
        println!("\nround {round}");
        if wanted("broker") {
            report.rate(
                "broker alone",
                None,
                ceilings::publishes(&stage, events).await,
            );
        }
        for (keep, ceiling, whole) in [
            (
                PublishedKeep::None,
                "database alone, keep none",
                "pg to nats, keep none",
            ),
            (
                PublishedKeep::Full,
                "database alone, keep full",
                "pg to nats, keep full",
            ),
        ] {
            if wanted(ceiling) {
                let cost = ceilings::reads_and_settlements(&stage, events, keep).await;
                report.rate(ceiling, None, cost);
            }
            if wanted(whole) {
                let cost = backlog::to_stream(&stage, events, Keys::Over(10_000), keep).await;
                report.rate(whole, Some(ceiling), cost);
            }
        }
        for (keys, name) in [
            (Keys::One, "pg to nats, one hot key"),
            (Keys::None, "pg to nats, no keys"),
        ] {
            if wanted(name) {
                let cost = backlog::to_stream(&stage, events, keys, PublishedKeep::None).await;
                report.rate(name, Some("database alone, keep none"), cost);
            }
        }
        for (name, third, other) in [
            ("two sinks alone", false, None),
            (
                "two sinks beside one that refuses",
                true,
                Some("two sinks alone"),
            ),
        ] {
            if wanted(name) {
                let cost = backlog::beside(&stage, events, third).await;
                report.rate(name, other, cost);
                if arguments.statements {
                    stage
                        .statements()
                        .await
                        .iter()
                        .for_each(|line| println!("    {line}"));
                }
            }
        }
        if wanted("sqlite to file") {
            report.rate("sqlite to file", None, backlog::to_file(events).await);
        }
        for rate in [200, 20] {
            let name = format!("latency at {rate} events/s");
            if wanted(&name) {
                let span = Duration::from_secs(if rate >= 100 { 10 } else { 20 });
                report.latency(&name, latency::at_rate(&stage, rate, span).await);
            }
        }
        if wanted("idle") {
            report.idle("idle", latency::idle(&stage, Duration::from_secs(10)).await);
        }
    }
    report.print();
}
