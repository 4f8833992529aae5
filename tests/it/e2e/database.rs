//! A database that restarts under the relay: exactly the committed events arrive, in order, and soon.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, LONG, assert_exactly, insert_on};
use super::ledger::{Writers, whole};
use crate::support::roles::Role;
use crate::support::{eventually, nats, postgres};

async fn restarted(crash: bool) {
    let mut server = postgres::Server::start_own(&[]).await;
    let database = server.database().await;
    let bench = Bench::over(database, nats::Server::start().await, &[]).await;
    let sent = bench.sent().await;
    let running = bench.relay().await;
    let writers = Writers::start(&bench.database.url_of(Role::Writer));
    for round in 1..=3 {
        sent.wait_for(sent.count() + 500).await;
        match crash {
            true => server.kill9().await,
            false => server.stop_fast().await,
        }
        let board = running.relay.board();
        eventually(LONG, "the outage is shown", || async {
            let problems = board.ready();
            problems
                .iter()
                .any(|problem| problem.part == "database")
                .then_some(())
                .ok_or(format!("{problems:?}"))
        })
        .await;
        server.restart().await;
        let back = Instant::now();
        // Something that only the restarted server can have shown.
        let mut connection = bench.database.writer().await;
        let fresh = insert_on(&mut connection, &[&format!("fresh-{round}")], 1).await;
        let id = format!("orders:{}", fresh[0].id);
        let limit = Duration::from_secs(5);
        eventually(limit, "a new event is sent", || async {
            sent.at(&id)
                .map(drop)
                .ok_or(format!("{:?}", board.snapshot()))
        })
        .await;
        println!(
            "round {round}: a new event was sent {:?} after the server was back",
            back.elapsed()
        );
    }
    let ledger = writers.stop().await;
    let mut committed = ledger.committed;
    bench.emptied().await;
    running.drained(LONG).await;
    let mut seen = bench.seen().await;
    seen.retain(|message| !message.key.starts_with("fresh-"));
    // A commit whose answer was lost may have happened: what arrived of those counts as committed.
    let arrived: HashSet<_> = seen.iter().map(|message| message.id).collect();
    committed.extend(whole(&ledger.unanswered, &arrived));
    println!(
        "{} events, {} sent more than once",
        committed.len(),
        sent.duplicates()
    );
    assert_exactly(&committed, &seen);
    assert!(seen.iter().all(|message| message.attempt == 1));
    // No more than what was on its way, or settled in the last moments, at each restart.
    assert!(sent.duplicates() <= 3 * 4_096, "{}", sent.duplicates());
    assert_eq!(running.metric("missed_total"), 0.0);
    running.relay.shutdown().await.unwrap();
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_costs_seconds_and_nothing_else() {
    restarted(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_costs_seconds_and_nothing_else() {
    restarted(true).await;
}

/// Settlements are written without waiting for the disk, so a crash may take the last of them back: the
/// rows are there again, behind everything that was read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_that_a_crash_took_back_are_made_again_soon() {
    // Nothing reaches the disk by itself for a while.
    let lazy = [("wal_writer_delay", "10s"), ("wal_writer_flush_after", "0")];
    let mut server = postgres::Server::start_own(&lazy).await;
    let database = server.database().await;
    let bench = Bench::over(database, nats::Server::start().await, &[]).await;
    let sent = bench.sent().await;
    let running = bench.relay().await;
    let mut lost = 0;
    let mut written = Vec::new();
    let mut crashes = 0;
    // On a busy machine something else may have brought all of it to the disk: then that was not the crash meant here.
    while crashes < 5 || lost == 0 {
        crashes += 1;
        assert!(crashes < 30, "the crashes took nothing back");
        written.extend(bench.insert(&["a", "b", "c"], 20).await);
        bench.wait_for(written.len()).await;
        bench.emptied().await;
        server.kill9().await;
        server.restart().await;
        lost += bench.number("select count(*) from outbox.event").await;
        let back = Instant::now();
        bench.emptied().await;
        assert!(
            back.elapsed() < Duration::from_secs(5),
            "after {:?}",
            back.elapsed()
        );
    }
    println!(
        "{lost} settlements taken back, {} sent more than once",
        sent.duplicates()
    );
    running.drained(LONG).await;
    assert_exactly(&written, &bench.seen().await);
    assert_eq!(running.metric("missed_total"), 0.0);
    bench.verified().await;
}
