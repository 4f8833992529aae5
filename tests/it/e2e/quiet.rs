//! An idle database that may sleep: no statement at all, until somebody writes.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, LONG, assert_exactly};
use crate::support::{eventually, nats, postgres};

/// Statements of the relay's sessions so far, connects and ends of sessions included.
fn statements(server: &postgres::Server) -> Vec<String> {
    let log = server.log();
    let of_relay = |line: &&str| {
        line.starts_with("app=outboxd|")
            && [
                "statement: ",
                "execute ",
                "connection authorized",
                "disconnection",
            ]
            .iter()
            .any(|what| line.contains(what))
    };
    log.lines().filter(of_relay).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_database_gets_no_statement_and_the_next_insert_wakes_the_relay() {
    let server = postgres::Server::start_own(&[
        ("log_statement", "all"),
        ("log_connections", "on"),
        ("log_disconnections", "on"),
        ("log_line_prefix", "app=%a|"),
    ])
    .await;
    let database = server.database().await;
    let bench = Bench::over(
        database,
        nats::Server::start().await,
        &[("databases.orders.quiet_after", "1s")],
    )
    .await;
    let running = bench.relay().await;
    let mut written = Vec::new();
    for round in 0..3 {
        let inserted = Instant::now();
        written.extend(bench.insert(&["k"], 10).await);
        let limit = match round {
            0 => LONG,
            _ => Duration::from_secs(1),
        };
        bench.wait_within(limit, written.len()).await;
        println!("round {round}: stored after {:?}", inserted.elapsed());
        let board = running.relay.board();
        eventually(LONG, "the database is quiet", || async {
            let shown = board.snapshot().databases[0].clone();
            let quiet = shown.state == outboxd::status::DatabaseState::Quiet;
            quiet.then_some(()).ok_or(format!("{shown:?}"))
        })
        .await;
        let freed = "select count(*) from outbox.lease where owner is not null";
        eventually(LONG, "the leases are given back", || async {
            let count = bench.number(freed).await;
            (count == 0).then_some(()).ok_or(format!("{count} held"))
        })
        .await;
        let before = statements(&server);
        // Longer than every period that the relay has while it is awake, but for the sweep's.
        tokio::time::sleep(Duration::from_secs(12)).await;
        let after = statements(&server);
        assert!(!before.is_empty(), "the log is read right");
        assert_eq!(after[before.len()..], [] as [String; 0]);
    }
    let seen = bench.seen().await;
    assert_exactly(&written, &seen);
    assert_eq!(running.metric("missed_total"), 0.0);
    bench.verified().await;
}
