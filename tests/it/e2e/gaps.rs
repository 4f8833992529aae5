//! Commits that become visible out of the order of their numbers, with and without the guard.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::bench::{Bench, LONG, Running, Written, assert_exactly, assert_in_order, insert_on};
use crate::support::eventually;

/// How soon a row must be on its way once nothing stands against it.
const SOON: Duration = Duration::from_secs(1);

async fn with_guard(guard: &str) -> (Bench, Running) {
    let bench = Bench::new(&[("databases.orders.gap_guard", guard)]).await;
    let running = bench.relay().await;
    // Everything stands: connections, stream, leases.
    bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    running.drained(LONG).await;
    (bench, running)
}

/// Begins a transaction that stays open.
async fn begin(bench: &Bench) -> PgConnection {
    let mut connection = bench.database.connect().await;
    run(&mut connection, "begin").await;
    connection
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_transaction_that_writes_before_and_behind_the_cursor_keeps_its_order() {
    let (bench, running) = with_guard("off").await;
    let mut written = Vec::new();
    for round in 0..20 {
        let mut first = begin(&bench).await;
        let mut own = insert_on(&mut first, &["k"], 1).await;
        written.extend(bench.insert(&["other"], 1).await);
        bench.wait_for(2 + round * 3).await;
        own.extend(insert_on(&mut first, &["k"], 1).await);
        run(&mut first, "commit").await;
        written.extend(own);
        bench.wait_for(4 + round * 3).await;
    }
    let mut seen = bench.seen().await;
    seen.remove(0);
    assert_exactly(&written, &seen);
    assert_eq!(running.metric("inversions_total"), 0.0);
}
