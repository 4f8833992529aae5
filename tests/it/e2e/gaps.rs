//! Commits that become visible out of the order of their numbers, with and without the guard.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use super::bench::{Bench, LONG, Running, Written, assert_exactly, by_key, insert_on};

/// How soon a row must be stored once nothing stands against it.
const SOON: Duration = Duration::from_secs(1);

async fn with(settings: &[(&str, &str)]) -> (Bench, Running) {
    let bench = Bench::new(settings).await;
    let running = bench.relay().await;
    // Everything stands: connections, stream, leases.
    bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    running.drained(LONG).await;
    (bench, running)
}

const OFF: (&str, &str) = ("databases.orders.gap_guard", "off");
const HOLD: (&str, &str) = ("databases.orders.gap_guard", "hold");

/// Begins a transaction that stays open.
async fn begin(bench: &Bench) -> PgConnection {
    let mut connection = bench.database.writer().await;
    run(&mut connection, "begin").await;
    connection
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

/// Time in which what must not leave would have left.
async fn nothing_leaves(bench: &Bench) {
    let before = bench.count().await;
    // That time passes and nothing happens is what is asked here.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(bench.count().await, before);
}

#[tokio::test]
async fn a_transaction_that_writes_before_and_behind_the_cursor_keeps_its_order() {
    let (bench, running) = with(&[OFF]).await;
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
    bench.verified().await;
}

#[tokio::test]
async fn more_rows_in_a_gap_than_one_look_shows_still_go_first() {
    let (bench, running) = with(&[OFF]).await;
    let mut first = begin(&bench).await;
    let mut written = insert_on(&mut first, &["a", "b", "c"], 1_500).await;
    written.extend(bench.insert(&["other"], 1).await);
    bench.wait_for(2).await;
    written.extend(insert_on(&mut first, &["a", "b", "c"], 100).await);
    run(&mut first, "commit").await;
    let mut seen = bench.wait_for(1 + 1 + 4_800).await;
    seen.remove(0);
    assert_exactly(&written, &seen);
    assert_eq!(running.metric("inversions_total"), 0.0);
    bench.verified().await;
}

#[tokio::test]
async fn off_goes_on_and_counts_the_late_one_as_an_inversion() {
    let (bench, running) = with(&[OFF]).await;
    let mut first = begin(&bench).await;
    let late = insert_on(&mut first, &["k"], 1).await;
    let early = bench.insert(&["k", "other"], 1).await;
    bench.wait_within(SOON, 3).await;
    run(&mut first, "commit").await;
    let seen = bench.wait_within(SOON, 4).await;
    assert_eq!(by_key(&seen)["k"], [early[0].seq, late[0].seq]);
    running.drained(LONG).await;
    assert_eq!(running.metric("inversions_total"), 1.0);
    assert_eq!(running.metric("missed_total"), 0.0);
    // Whoever reads the stream finds them the wrong way round.
    let report = &bench.reports().await[0];
    assert_eq!((report.out_of_order.count, report.missing.count), (1, 0));
    assert_eq!(report.out_of_order.first[0].seq, Some(late[0].seq));
}

#[tokio::test]
async fn off_counts_a_late_one_whose_key_has_long_been_at_rest() {
    let (bench, running) = with(&[OFF]).await;
    let mut first = begin(&bench).await;
    insert_on(&mut first, &["k"], 1).await;
    bench.insert(&["k"], 1).await;
    bench.wait_within(SOON, 2).await;
    bench.emptied().await;
    // Longer than a sequencer without work lives.
    tokio::time::sleep(Duration::from_secs(1)).await;
    run(&mut first, "commit").await;
    bench.wait_within(SOON, 3).await;
    running.drained(LONG).await;
    assert_eq!(running.metric("inversions_total"), 1.0);
}

#[tokio::test]
async fn off_forgets_a_gap_that_was_rolled_back() {
    let (bench, running) = with(&[OFF]).await;
    let mut first = begin(&bench).await;
    insert_on(&mut first, &["k"], 1).await;
    let written = bench.insert(&["k"], 1).await;
    bench.wait_within(SOON, 2).await;
    let open = tokio::time::timeout(SOON, running.relay.drained()).await;
    assert!(open.is_err(), "a gap is open: more may come");
    run(&mut first, "rollback").await;
    running.drained(SOON).await;
    assert_eq!(by_key(&bench.seen().await)["k"], [written[0].seq]);
    assert_eq!(running.metric("inversions_total"), 0.0);
    bench.verified().await;
}

#[tokio::test]
async fn hold_waits_for_the_late_one() {
    let (bench, running) = with(&[HOLD]).await;
    let mut first = begin(&bench).await;
    let mut written = insert_on(&mut first, &["k"], 1).await;
    written.extend(bench.insert(&["k", "other"], 1).await);
    nothing_leaves(&bench).await;
    run(&mut first, "commit").await;
    let mut seen = bench.wait_within(SOON, 4).await;
    seen.remove(0);
    assert_exactly(&written, &seen);
    assert_eq!(running.metric("inversions_total"), 0.0);
    bench.verified().await;
}

#[tokio::test]
async fn hold_goes_on_after_a_rollback() {
    let (bench, running) = with(&[HOLD]).await;
    let mut first = begin(&bench).await;
    insert_on(&mut first, &["k"], 1).await;
    let written = bench.insert(&["k"], 1).await;
    nothing_leaves(&bench).await;
    run(&mut first, "rollback").await;
    let mut seen = bench.wait_within(SOON, 2).await;
    seen.remove(0);
    assert_exactly(&written, &seen);
    running.drained(SOON).await;
    bench.verified().await;
}

#[tokio::test]
async fn hold_goes_on_when_the_writer_dies() {
    let (bench, _running) = with(&[HOLD]).await;
    let mut first = begin(&bench).await;
    insert_on(&mut first, &["k"], 1).await;
    bench.insert(&["k"], 1).await;
    nothing_leaves(&bench).await;
    drop(first);
    bench.wait_within(SOON, 2).await;
    bench.verified().await;
}

/// A transaction in two phases has left its session, but may still show its rows.
async fn prepared(guard: (&str, &str), end: &str) -> (Bench, Running, Vec<Written>) {
    // A transaction that notified cannot be prepared: such writers go with polling.
    let poll = ("databases.orders.wake", "poll");
    let often = ("databases.orders.poll_max", "100ms");
    let (bench, running) = with(&[guard, poll, often]).await;
    let mut first = begin(&bench).await;
    let mut written = insert_on(&mut first, &["k"], 1).await;
    let behind = bench.insert(&["other"], 1).await;
    if guard == OFF {
        bench.wait_within(SOON, 2).await;
    }
    // Names of prepared transactions are the whole server's.
    let name = &bench.database.name;
    run(&mut first, &format!("prepare transaction '{name}'")).await;
    if guard == HOLD {
        nothing_leaves(&bench).await;
    }
    let open = tokio::time::timeout(SOON, running.relay.drained()).await;
    assert!(open.is_err(), "a gap is open: more may come");
    run(&mut first, &format!("{end} prepared '{name}'")).await;
    if end == "rollback" {
        written.clear();
    }
    written.extend(behind);
    (bench, running, written)
}

#[tokio::test]
async fn off_delivers_what_a_prepared_transaction_commits() {
    let (bench, running, written) = prepared(OFF, "commit").await;
    let mut seen = bench.wait_within(SOON, 3).await;
    seen.remove(0);
    assert_exactly(&written, &seen);
    running.drained(SOON).await;
    assert_eq!(running.metric("missed_total"), 0.0);
    bench.verified().await;
}

#[tokio::test]
async fn hold_waits_for_a_prepared_transaction_that_commits() {
    let (bench, running, written) = prepared(HOLD, "commit").await;
    let mut seen = bench.wait_within(SOON, 3).await;
    seen.remove(0);
    assert_exactly(&written, &seen);
    assert_eq!(seen[0].id, written[0].id, "the lower number first");
    running.drained(SOON).await;
    bench.verified().await;
}

#[tokio::test]
async fn hold_waits_for_a_prepared_transaction_that_rolls_back() {
    let (bench, running, written) = prepared(HOLD, "rollback").await;
    let mut seen = bench.wait_within(SOON, 2).await;
    seen.remove(0);
    assert_exactly(&written, &seen);
    running.drained(SOON).await;
    bench.verified().await;
}

#[tokio::test]
async fn hold_does_not_wait_for_transactions_that_are_none_of_its_business() {
    let (bench, running) = with(&[HOLD]).await;
    bench
        .database
        .execute(
            "create schema app; create table app.elsewhere (n int);
             grant usage on schema app to public; grant all on app.elsewhere to public",
        )
        .await;
    // One that writes elsewhere, one that only reads, and one that reads the outbox itself.
    let mut others = Vec::new();
    for sql in [
        "insert into app.elsewhere values (1)",
        "set transaction isolation level repeatable read; select count(*) from app.elsewhere",
        "set transaction isolation level repeatable read; select count(*) from outbox.event",
    ] {
        let mut other = begin(&bench).await;
        run(&mut other, sql).await;
        others.push(other);
    }
    let mut first = begin(&bench).await;
    insert_on(&mut first, &["k"], 1).await;
    let written = bench.insert(&["k"], 1).await;
    nothing_leaves(&bench).await;
    run(&mut first, "rollback").await;
    let mut seen = bench.wait_within(SOON, 2).await;
    seen.remove(0);
    assert_exactly(&written, &seen);
    running.drained(SOON).await;
    bench.verified().await;
}

/// A key that waits for its head's time reads its own run afterwards, which must not go past a gap either.
#[tokio::test]
async fn hold_keeps_the_order_of_a_key_that_was_waiting_for_its_time() {
    let (bench, running) = with(&[HOLD]).await;
    bench
        .database
        .write(
            "insert into outbox.event (kind, ordering_key, payload, available_at)
             values ('order.made', 'k', '1', now() + interval '1.5 s')",
        )
        .await;
    running.drained(SOON).await;
    let mut first = begin(&bench).await;
    let late = insert_on(&mut first, &["k"], 1).await;
    let early = bench.insert(&["k"], 1).await;
    // The delayed one alone.
    bench.wait_within(Duration::from_secs(4), 2).await;
    nothing_leaves(&bench).await;
    run(&mut first, "commit").await;
    let seen = bench.wait_within(SOON, 4).await;
    assert_eq!(by_key(&seen)["k"][1..], [late[0].seq, early[0].seq]);
    assert_eq!(running.metric("inversions_total"), 0.0);
    bench.verified().await;
}
