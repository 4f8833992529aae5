//! Ordered lanes end to end: a hot key beside many others, while brokers and relays die in the middle of batches.
//!
//! `OUTBOXD_TEST_LANES=5` makes the tests five times as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;

use super::bench::{Bench, LONG, Running, STREAM, Written, assert_exactly, insert_on};
use crate::support::cluster::Cluster;
use crate::support::postgres::{self, Database};
use crate::support::{eventually, nats};

/// How often everything is done.
fn rounds(usual: usize) -> usize {
    let times = std::env::var("OUTBOXD_TEST_LANES").ok();
    usual * times.and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// A writer: half of its events are of one key.
struct Writer {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<Written>>,
}

impl Writer {
    /// In each transaction `each` events of twenty keys, and as many of the hot one.
    fn start(database: &Database, each: usize) -> Self {
        const PACE: Duration = Duration::from_millis(40);
        let stop = Arc::new(AtomicBool::new(false));
        let (database, stopped) = (database.clone(), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let mut connection = database.writer().await;
            let mut written = Vec::new();
            for round in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let others: Vec<String> = (0..20)
                    .map(|n| format!("k{}", (round * 20 + n) % 130))
                    .collect();
                let keys: Vec<&str> = others.iter().flat_map(|key| ["hot", key]).collect();
                written.extend(insert_on(&mut connection, &keys, each).await);
                // A pace, so that there is still something to write when the last fault comes.
                tokio::time::sleep(PACE).await;
            }
            written
        });
        Self { stop, task }
    }

    async fn end(self) -> Vec<Written> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

fn shows_lanes(running: &Running) {
    let snapshot = format!("{:?}", running.relay.board().snapshot());
    assert!(snapshot.contains("mode: \"lane\""), "{snapshot}");
}

/// Everything committed is in the stream, once and in order, and the relay knows it.
async fn all_is_well(bench: &Bench, running: &Running, written: &[Written]) {
    bench.emptied().await;
    let seen = bench.wait_for(written.len()).await;
    assert_exactly(written, &seen);
    running.drained(LONG).await;
    assert_eq!(running.metric("missed_total"), 0.0);
    assert_eq!(running.metric("inversions_total"), 0.0);
    shows_lanes(running);
    let discarded = bench.number("select count(*) from outbox.discarded").await;
    assert_eq!(discarded, 0);
    println!("{} events", written.len());
    bench.verified().await;
}

/// What a relay needs to go on soon.
const IMPATIENT: [(&str, &str); 2] = [
    ("lease.ttl", "3s"),
    ("sinks.events.publish_timeout", "900ms"),
];

/// Enough that several batches have gone through since the last fault.
const PROGRESS: u64 = 800;

async fn progress(cluster: &Cluster) {
    let before = cluster.count(STREAM).await;
    eventually(LONG, "events go on", || async {
        let now = cluster.count(STREAM).await;
        let on = now >= before + PROGRESS;
        on.then_some(())
            .ok_or(format!("{before} before, {now} now"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_loses_each_node_and_changes_its_leader_keeps_lanes_whole() {
    let mut cluster = Cluster::start().await;
    let subjects = json!({"subjects": ["events.>"], "allow_batched": true});
    cluster.create_stream(STREAM, subjects).await;
    cluster.healthy(STREAM).await;
    let urls = cluster.urls();
    let database = postgres::server().await.database().await;
    // Not in use: the bench reads the cluster in its place.
    let bench = Bench::over(database, nats::Server::start().await, &IMPATIENT).await;
    let mut bench = bench.with(&[("sinks.events.url", urls.as_str())]);
    let writer = Writer::start(&bench.database, 2);
    let running = bench.relay().await;
    let mut first = 0;
    for round in 0..rounds(3) {
        progress(&cluster).await;
        cluster.step_down(STREAM).await;
        progress(&cluster).await;
        let leader = cluster.leader(STREAM).await;
        first = if round == 0 { leader } else { first };
        let victim = (first + round) % 3;
        if round % 3 > 0 && victim == leader {
            // The death of a leader takes many seconds until the next is elected: once around.
            cluster.step_down(STREAM).await;
        }
        cluster.node(victim).kill9();
        progress(&cluster).await;
        cluster.node(victim).restart().await;
        cluster.healthy(STREAM).await;
    }
    let written = writer.end().await;
    std::mem::swap(&mut bench.nats, cluster.node(0));
    all_is_well(&bench, &running, &written).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_in_the_middle_of_lanes_loses_doubles_and_turns_nothing() {
    let mut bench = Bench::new(&IMPATIENT).await;
    let writer = Writer::start(&bench.database, 4);
    let running = bench.relay().await;
    for _ in 0..rounds(5) {
        let before = bench.count().await;
        bench.wait_until(before + PROGRESS).await;
        bench.nats.kill9();
        bench.nats.restart().await;
    }
    let written = writer.end().await;
    all_is_well(&bench, &running, &written).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_goes_in_the_middle_of_lanes_is_followed_by_the_next() {
    let bench = Bench::new(&IMPATIENT).await;
    let writer = Writer::start(&bench.database, 4);
    let mut running = bench.relay().await;
    for _ in 0..rounds(3) {
        let next = bench.relay().await;
        let before = bench.count().await;
        bench.wait_until(before + PROGRESS).await;
        shows_lanes(&running);
        // Without a word: what it had out is out.
        drop(running);
        running = next;
    }
    let written = writer.end().await;
    all_is_well(&bench, &running, &written).await;
}
