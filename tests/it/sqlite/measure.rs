//! What settling costs. Not a promise, a measurement:
//! `cargo test --test it measure_settling -- --ignored --nocapture`.

#![allow(clippy::print_stderr)] // The numbers are the result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outboxd::lease::shard_of;
use outboxd::sink::Receipt;
use outboxd::source::{Outcome, ReadBounds, Verdict};
use outboxd::testing::source::{NewRow, Outbox as _, SHARDS};

use crate::source_conformance::sqlite::SqliteOutbox;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, proves nothing"]
async fn measure_settling() {
    const BATCH: usize = 500;
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    let payload = format!("\"{}\"", "x".repeat(1_000));
    let rows: Vec<NewRow> = (0..20_000)
        .map(|n| NewRow::json("a.b.c", &payload).key(&format!("key-{}", n % 1_000)))
        .collect();
    let started = Instant::now();
    outbox.insert(&rows).await;
    eprintln!(
        "insert: {:.1} µs an event",
        started.elapsed().as_micros() as f64 / 20_000.0
    );
    let leases = source
        .acquire(uuid::Uuid::now_v7(), Duration::from_secs(60), u16::MAX)
        .await
        .unwrap();
    let (mut reading, mut settling) = (0.0, 0.0);
    let mut after = 0;
    loop {
        let started = Instant::now();
        let rows = source
            .read("events", after, ReadBounds::rows(BATCH as u32), &[])
            .await
            .unwrap();
        reading += started.elapsed().as_micros() as f64;
        let Some(last) = rows.last() else { break };
        after = last.seq;
        let outcomes: Vec<Outcome> = rows
            .iter()
            .map(|row| Outcome {
                seq: row.seq,
                id: row.id,
                sink: "events".into(),
                route: [Arc::from("events")].into(),
                lease: leases[usize::from(shard_of(row.ordering_key.as_deref(), row.seq, SHARDS))],
                verdict: Verdict::Published {
                    attempts: 0,
                    receipt: Receipt {
                        stream: Some("EVENTS".into()),
                        position: Some(row.seq as u64),
                        duplicate: false,
                    },
                },
            })
            .collect();
        let started = Instant::now();
        let flags = source.settle(&outcomes, false).await.unwrap();
        settling += started.elapsed().as_micros() as f64;
        assert!(flags.iter().all(|flag| *flag));
    }
    eprintln!(
        "read: {:.1}, settle with full history: {:.1} µs an event",
        reading / 20_000.0,
        settling / 20_000.0
    );
}

/// From a commit until the listener has woken and the row was read: in a trickle, and after idling.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, proves nothing"]
async fn measure_waking() {
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    for pause in [
        Duration::from_millis(5),
        Duration::from_millis(50),
        Duration::from_secs(5),
    ] {
        let mut listener = source.listen().await.unwrap().unwrap();
        let rounds = if pause > Duration::from_secs(1) {
            6
        } else {
            100
        };
        let mut spans = Vec::new();
        for _ in 0..rounds {
            let write = async {
                // How long the source idled before is what is varied here.
                tokio::time::sleep(pause).await;
                let at = outbox.insert(&[NewRow::json("a", "1")]).await[0];
                (at, Instant::now())
            };
            let wait = async {
                let mut seen = Vec::new();
                while seen.is_empty() {
                    listener.wait().await.unwrap();
                    seen = source
                        .read("events", 0, ReadBounds::rows(10), &[])
                        .await
                        .unwrap();
                }
                Instant::now()
            };
            let ((at, committed), woken) = tokio::join!(write, wait);
            spans.push(woken.saturating_duration_since(committed));
            let delete = sqlx::query("DELETE FROM outbox_event WHERE seq = ?").bind(at.seq);
            delete
                .execute(&mut outbox.application().await)
                .await
                .unwrap();
            let _ = tokio::time::timeout(Duration::from_millis(100), listener.wait()).await;
        }
        spans.sort();
        let (half, last) = (spans[spans.len() / 2], spans[spans.len() - 1]);
        eprintln!("waking after {pause:?}: p50 {half:?}, slowest {last:?}");
    }
}
