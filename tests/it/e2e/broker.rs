//! A broker that is not there: nothing is charged, nothing is lost, and the order stays.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, LONG, Written, assert_exactly, insert_on};
use crate::support::{eventually, nats, postgres};

/// An outage is nobody's fault: no event of it carries an attempt, none is set aside.
async fn nothing_was_charged(bench: &Bench) {
    for table in ["delivery", "discarded"] {
        let sql = format!("select count(*) from outbox.{table}");
        assert_eq!(bench.number(&sql).await, 0, "{table}");
    }
}

async fn is_shown_as_not_ready(running: &super::bench::Running) {
    let board = running.relay.board();
    eventually(LONG, "the outage is shown", || async {
        let problems = board.ready();
        problems
            .iter()
            .any(|problem| problem.part == "sink")
            .then_some(())
            .ok_or(format!("{problems:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_absent_at_the_start_is_waited_for() {
    let database = postgres::server().await.database().await;
    let mut nats = nats::Server::start().await;
    nats.stop().await;
    let mut bench = Bench::over(database, nats, &[]).await;
    let mut written = bench.insert(&["a", "b", "c"], 300).await;
    let running = bench.relay().await;
    is_shown_as_not_ready(&running).await;
    written.extend(bench.insert(&["a", "b", "c"], 300).await);
    // Long enough for several attempts to connect.
    tokio::time::sleep(Duration::from_secs(3)).await;
    nothing_was_charged(&bench).await;
    bench.nats.restart().await;
    let back = Instant::now();
    let seen = bench.wait_for(written.len()).await;
    println!("all stored {:?} after the broker came", back.elapsed());
    bench.emptied().await;
    assert_exactly(&written, &seen);
    assert!(seen.iter().all(|message| message.attempt == 1));
    nothing_was_charged(&bench).await;
    assert!(running.relay.board().ready().is_empty());
    bench.verified().await;
}

/// Writers that go on through the outage: one transaction for each event, round the keys.
async fn write_until(database: postgres::Database, stop: Instant) -> Vec<Written> {
    let keys: Vec<String> = (0..50).map(|key| format!("k{key}")).collect();
    let mut connection = database.writer().await;
    let mut written = Vec::new();
    for key in keys.iter().cycle() {
        if Instant::now() > stop {
            break;
        }
        written.extend(insert_on(&mut connection, &[key], 2).await);
    }
    written
}

async fn stopped_in_the_middle(clean: bool) {
    // Less patience than an outage lasts: what is sent and not answered ends as unknown, not as a failure.
    let mut bench = Bench::new(&[
        ("sinks.events.publish_timeout", "500ms"),
        ("retry.max_attempts", "3"),
        ("retry.base", "50ms"),
        ("retry.max", "100ms"),
    ])
    .await;
    let running = bench.relay().await;
    let stop = Instant::now() + Duration::from_secs(9);
    let writer = tokio::spawn(write_until(bench.database.clone(), stop));
    bench.wait_for(500).await;
    match clean {
        true => bench.nats.stop().await,
        false => bench.nats.freeze(),
    }
    is_shown_as_not_ready(&running).await;
    // The outage itself: much longer than three attempts would take.
    tokio::time::sleep(Duration::from_secs(5)).await;
    nothing_was_charged(&bench).await;
    match clean {
        true => bench.nats.restart().await,
        false => bench.nats.thaw(),
    }
    let back = Instant::now();
    let written = writer.await.unwrap();
    bench.emptied().await;
    println!(
        "{} events, all stored {:?} after the broker was back",
        written.len(),
        back.elapsed()
    );
    let seen = bench.wait_for(written.len()).await;
    assert_exactly(&written, &seen);
    assert!(seen.iter().all(|message| message.attempt == 1));
    nothing_was_charged(&bench).await;
    running.drained(LONG).await;
    assert_eq!(running.metric("retried_total"), 0.0);
    assert_eq!(running.metric("missed_total"), 0.0);
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stops_in_the_middle_costs_time_alone() {
    stopped_in_the_middle(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stands_still_in_the_middle_costs_time_alone() {
    stopped_in_the_middle(false).await;
}
