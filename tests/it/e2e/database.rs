//! A database that restarts under the relay: exactly the committed events arrive, in order, and soon.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::time::Instant;

use super::bench::{Bench, LONG, Written, assert_exactly, insert_on};
use crate::support::roles::Role;
use crate::support::{eventually, nats, postgres};

/// What a writer knows in the end: events whose commit was answered, and events whose commit was not.
#[derive(Default)]
struct Ledger {
    committed: Vec<Written>,
    unanswered: Vec<Written>,
}

/// Writes through the restarts, round the keys, each transaction once.
async fn write_until(url: String, keys: Vec<String>, stop: Arc<AtomicBool>) -> Ledger {
    let mut ledger = Ledger::default();
    let mut connection: Option<PgConnection> = None;
    for key in keys.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if connection.is_none() {
            connection = PgConnection::connect(&url).await.ok();
        }
        let Some(open) = connection.as_mut() else {
            tokio::task::yield_now().await;
            continue;
        };
        match one_transaction(open, key).await {
            Ok(written) => {
                ledger.committed.extend(written);
                // The pace of the writers: what is looked at is an outage, not a backlog.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(unanswered) => {
                ledger.unanswered.extend(unanswered);
                connection = None;
            }
        }
    }
    ledger
}

/// Inserts and commits. The error holds what may have been committed all the same.
async fn one_transaction(
    connection: &mut PgConnection,
    key: &str,
) -> Result<Vec<Written>, Vec<Written>> {
    let mut transaction = connection.begin().await.map_err(|_| Vec::new())?;
    let rows: Vec<(uuid::Uuid, i64)> = sqlx::query_as(
        "insert into outbox.event (kind, ordering_key, payload)
         select 'order.made', $1, json_build_object('n', n) from generate_series(1, 3) as n
         order by n
         returning id, seq",
    )
    .bind(key)
    .fetch_all(&mut *transaction)
    .await
    .map_err(|_| Vec::new())?;
    let written: Vec<Written> = rows
        .into_iter()
        .zip(1..)
        .map(|((id, seq), n)| Written {
            id,
            seq,
            key: key.to_owned(),
            payload: format!("{{\"n\" : {n}}}"),
        })
        .collect();
    match transaction.commit().await {
        Ok(()) => Ok(written),
        Err(_) => Err(written),
    }
}

async fn restarted(crash: bool) {
    let mut server = postgres::Server::start_own(&[]).await;
    let database = server.database().await;
    let bench = Bench::over(database, nats::Server::start().await, &[]).await;
    let sent = bench.sent().await;
    let running = bench.relay().await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let keys = (0..25).map(|key| format!("k{writer}-{key}")).collect();
            let url = bench.database.url_of(Role::Writer);
            tokio::spawn(write_until(url, keys, Arc::clone(&stop)))
        })
        .collect();
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
    stop.store(true, Ordering::Relaxed);
    let mut committed = Vec::new();
    let mut unanswered = Vec::new();
    for writer in writers {
        let ledger = writer.await.unwrap();
        committed.extend(ledger.committed);
        unanswered.extend(ledger.unanswered);
    }
    bench.emptied().await;
    running.drained(LONG).await;
    let mut seen = bench.seen().await;
    seen.retain(|message| !message.key.starts_with("fresh-"));
    // A commit whose answer was lost may have happened: what arrived of those counts as committed, whole
    // transactions only.
    let arrived: HashSet<_> = seen.iter().map(|message| message.id).collect();
    for transaction in unanswered.chunks(3) {
        let count = transaction
            .iter()
            .filter(|e| arrived.contains(&e.id))
            .count();
        assert!(count == 0 || count == 3, "{count} of a transaction of 3");
        if count == 3 {
            committed.extend(transaction.iter().cloned());
        }
    }
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
