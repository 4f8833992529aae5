//! Rates of the PostgreSQL source, to be run by hand:
//! `cargo test --release --test it postgres_measure -- --ignored --nocapture`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use outboxd::source::{Outcome, PublishedKeep, ReadBounds, Source};

use crate::postgres_fixture::*;
use crate::support::postgres::Database;

const EVENTS: i64 = 50_000;
const BATCH: u32 = 500;

#[tokio::test]
#[ignore = "a measurement"]
async fn settle_and_read() {
    for keep in [
        PublishedKeep::None,
        PublishedKeep::Receipt,
        PublishedKeep::Full,
    ] {
        for sinks in [&["events"][..], &["events", "hooks"][..]] {
            measure(keep, sinks).await;
        }
    }
}

async fn measure(keep: PublishedKeep, sinks: &[&str]) {
    let (database, first) = outbox().await;
    first.close().await;
    fill(&database).await;
    let source = another(&database, |o| o.keep = keep);
    let leases = acquire(&source).await;
    let (mut reading, mut settling) = (Duration::ZERO, Duration::ZERO);
    let mut after = 0;
    loop {
        let start = Instant::now();
        let rows = source
            .read("events", after, ReadBounds::rows(BATCH), &[])
            .await
            .unwrap();
        reading += start.elapsed();
        let Some(last) = rows.last() else { break };
        after = last.seq;
        let batch: Vec<Outcome> = rows
            .iter()
            .map(|row| outcome(&leases, row, sinks, published()))
            .collect();
        let start = Instant::now();
        let settled = source.settle(&batch, false).await.unwrap();
        settling += start.elapsed();
        assert!(settled.iter().all(|flag| *flag));
    }
    println!(
        "keep {keep:?}, {} sink(s): settle {:.1} us an event, read {:.0} rows/s",
        sinks.len(),
        settling.as_secs_f64() * 1e6 / EVENTS as f64,
        EVENTS as f64 / reading.as_secs_f64(),
    );
}

/// Events of about 1 KiB over 1,000 keys.
async fn fill(database: &Database) {
    database
        .execute(&format!(
            "insert into outbox.event (kind, ordering_key, payload)
               select 'a.b', 'k' || n % 1000, json_build_object('x', repeat('y', 1000)) from generate_series(1, {EVENTS}) n;
             analyze outbox.event"
        ))
        .await;
}
