//! Many writers while the relay runs: exactly what was committed arrives, each key in order, each event once.

use std::path::Path;
use std::time::Duration;

use outboxd::config::{Loaded, Place, build};
use outboxd::metrics::Metrics;
use outboxd::relay;
use tokio::time::Instant;

use super::bench::{Bench, LONG, Seen, assert_exactly, by_key, sum_of};
use super::writers::{self, Plan};
use crate::cli_bin::Workplace;
use crate::support::roles::Role;
use crate::support::{eventually, verified};

/// A sweep every second, so that "nothing was missed" is looked at all the time.
const SWEEP: (&str, &str) = ("databases.orders.sweep_every", "1s");

async fn postgres_to_nats(plan: Plan, guard: &str) {
    let bench = Bench::new(&[SWEEP, ("databases.orders.gap_guard", guard)]).await;
    let running = bench.relay().await;
    let began = Instant::now();
    let outcome = writers::postgres(&bench.database.url_of(Role::Writer), plan).await;
    let written = began.elapsed();
    bench.wait_for(outcome.committed.len()).await;
    let stored = began.elapsed();
    bench.emptied().await;
    running.drained(Duration::from_secs(10)).await;
    let seen = bench.seen().await;
    let rate = seen.len() as f64 / stored.as_secs_f64();
    println!(
        "{} committed, {} rolled back, {} transactions held open: written in {written:.1?}, stored after \
         {stored:.1?}, {rate:.0} events a second",
        outcome.committed.len(),
        outcome.rolled_back,
        outcome.held
    );
    assert!(outcome.rolled_back > 0 && outcome.held > 0, "a real load");
    assert_exactly(&outcome.committed, &seen);
    // Keys are drawn at random: once in a while one is never drawn.
    let keys = by_key(&seen).len() as u64;
    assert!(keys * 100 > plan.keys * 99, "{keys} keys");
    assert!(seen.iter().all(|message| message.attempt == 1));
    for name in ["missed_total", "inversions_total", "lease_lost_total"] {
        assert_eq!(running.metric(name), 0.0, "{name}");
    }
    assert_eq!(running.metric("published_total"), seen.len() as f64);
    let kept = bench.number("select count(*) from outbox.published").await;
    assert_eq!(kept, seen.len() as i64, "each has its receipt");
    // A sweep over the empty table finds nothing either.
    running.relay.shutdown().await.unwrap();
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_events_from_eight_writers() {
    let plan = Plan {
        writers: 8,
        events: 50_000,
        keys: 1_000,
        per_transaction: 8,
        serialized: true,
        held_one_in: 200,
        held_ms: (1_000, 3_000),
    };
    postgres_to_nats(plan, "off").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_one_key_that_do_not_wait_for_each_other_are_put_in_order_by_the_guard() {
    let plan = Plan {
        writers: 8,
        events: 6_000,
        keys: 20,
        per_transaction: 5,
        serialized: false,
        held_one_in: 200,
        held_ms: (200, 1_000),
    };
    postgres_to_nats(plan, "hold").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_from_sqlite_to_a_file() {
    let place = Workplace::sqlite_to_file("");
    let within = |name: &str| place.path(name).display().to_string();
    let env = [
        (
            "DATABASES__ORDERS__URL",
            format!("sqlite://{}", within("orders.db")),
        ),
        ("DATABASES__ORDERS__SWEEP_EVERY", "1s".to_owned()),
        ("SINKS__LOG__PATH", within("events.jsonl")),
    ];
    let env = env.map(|(name, value)| (format!("OUTBOXD__{name}").into(), value.into()));
    let place_of_config = Place {
        file: Some(place.path("outboxd.toml")),
        env: env.to_vec(),
    };
    let config = Loaded::from(&place_of_config).unwrap().config;
    let outbox = build::outbox("orders", &config.databases["orders"], &config).unwrap();
    outbox.admin.migrate().await.unwrap();
    let metrics = Metrics::new().unwrap();
    let options = build::options(&config, metrics.telemetry()).unwrap();
    let relay = relay::start(options).await.unwrap();

    let plan = Plan {
        writers: 4,
        events: 10_000,
        keys: 200,
        per_transaction: 10,
        serialized: true,
        held_one_in: 80,
        held_ms: (300, 1_200),
    };
    let began = Instant::now();
    let outcome = writers::sqlite(&place.path("orders.db"), plan).await;
    let written = began.elapsed();
    let status = || async {
        let backlog = outbox.source.backlog().await;
        match backlog.map(|backlog| backlog.events) {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?} events pending")),
        }
    };
    eventually(LONG, "the outbox is empty", status).await;
    let stored = began.elapsed();
    relay.shutdown().await.unwrap();
    let seen = lines_of(&place.path("events.jsonl"));
    let rate = seen.len() as f64 / stored.as_secs_f64();
    println!(
        "{} committed, {} rolled back, {} transactions held open: written in {written:.1?}, in the file after \
         {stored:.1?}, {rate:.0} events a second",
        outcome.committed.len(),
        outcome.rolled_back,
        outcome.held
    );
    assert!(outcome.rolled_back > 0 && outcome.held > 0, "a real load");
    assert_exactly(&outcome.committed, &seen);
    assert!(seen.iter().all(|line| line.attempt == 1));
    let text = metrics.render().unwrap();
    for name in ["missed_total", "inversions_total", "lease_lost_total"] {
        assert_eq!(sum_of(&text, name), 0.0, "{name}");
    }
    let sink = build::sink("log", &config.sinks["log"], &config).unwrap();
    let report = verified::report(&*outbox.admin, "log", &*sink).await;
    verified::assert_fits(&report);
    assert_eq!(
        (report.delivered, report.held),
        (seen.len() as u64, seen.len() as u64)
    );
}

fn lines_of(path: &Path) -> Vec<Seen> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        Seen {
            id: value["id"].as_str().unwrap().parse().unwrap(),
            seq: value["seq"].as_i64().unwrap(),
            key: value["ordering_key"].as_str().unwrap().to_owned(),
            attempt: u32::try_from(value["attempt"].as_u64().unwrap()).unwrap(),
            payload: bytes::Bytes::from(value["payload"].as_str().unwrap().to_owned()),
        }
    };
    text.lines().map(line).collect()
}
