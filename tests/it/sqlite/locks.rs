//! Who is active, who waits, and what a busy or lost file does.

#![allow(clippy::print_stdout)] // A parent reads what its child prints.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outboxd::source::admin::Admin as _;
use outboxd::source::sqlite::{Options, Sqlite};
use outboxd::source::{ReadBounds, Source as _, SourceErrorKind};
use outboxd::testing::source::{NewRow, Outbox as _};
use sqlx::Connection as _;
use uuid::Uuid;

use crate::source_conformance::sqlite::{SqliteOutbox, options};

const PATH: &str = "OUTBOXD_TEST_SQLITE_PATH";
const MINUTE: Duration = Duration::from_secs(60);

/// Not a test of its own: the process that `a_killed_process_loses_the_lock` kills.
#[tokio::test]
#[ignore = "runs as a child of another test"]
async fn child_that_holds_the_lock() {
    let path = std::env::var_os(PATH).expect("run by its parent");
    let source = Sqlite::new(options(path.as_ref())).unwrap();
    source.open().await.unwrap();
    let leases = source
        .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
        .await
        .unwrap();
    println!("held {}", leases.len());
    // Until it is killed, or its parent is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_the_lock() {
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "sqlite::locks::child_that_holds_the_lock",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(PATH, outbox.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let held = lines
        .map_while(Result::ok)
        .find(|line| line.contains("held "));
    assert!(held.unwrap().ends_with("held 16"));
    let before = source
        .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
        .await
        .unwrap();
    assert!(before.is_empty(), "another process is active");
    child.kill().unwrap();
    child.wait().unwrap();
    let leases = source
        .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
        .await
        .unwrap();
    assert_eq!(leases.len(), 16, "at once, whatever the lease rows say");
    assert!(
        leases.iter().all(|lease| lease.token == 2),
        "under new tokens"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_frees_the_lock() {
    let outbox = SqliteOutbox::new().await;
    let (source, other) = (outbox.source(), outbox.another().await);
    assert_eq!(
        source
            .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
            .await
            .unwrap()
            .len(),
        16
    );
    assert!(
        other
            .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
            .await
            .unwrap()
            .is_empty()
    );
    source.close().await;
    assert_eq!(
        other
            .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
            .await
            .unwrap()
            .len(),
        16
    );
    assert!(
        source
            .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
            .await
            .unwrap()
            .is_empty(),
        "and reopens"
    );
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_lock_file_ends_ownership() {
    let outbox = SqliteOutbox::new().await;
    let (source, other) = (outbox.source(), outbox.another().await);
    let leases = source
        .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
        .await
        .unwrap();
    std::fs::remove_file(outbox.path().with_extension("db.outboxd-lock")).unwrap();
    assert!(source.renew(&leases, MINUTE).await.unwrap().held.is_empty());
    assert_eq!(
        other
            .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
            .await
            .unwrap()
            .len(),
        16
    );
    assert!(
        source
            .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
            .await
            .unwrap()
            .is_empty()
    );
}

/// A writer that keeps the write lock delays the relay up to its limit, and never for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_does_not_commit_is_an_outage_that_ends() {
    let outbox = SqliteOutbox::new().await;
    let limit = Duration::from_millis(300);
    let source = Sqlite::new(Options {
        statement_timeout: limit,
        ..options(&outbox.path())
    })
    .unwrap();
    source.open().await.unwrap();
    let leases = source
        .acquire(Uuid::now_v7(), MINUTE, u16::MAX)
        .await
        .unwrap();
    let mut application = outbox.application().await;
    let transaction = application.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let started = Instant::now();
    let gone = source.goodbye(Uuid::now_v7()).await.unwrap_err();
    assert_eq!(gone.kind, SourceErrorKind::Unavailable, "{gone}");
    assert!(started.elapsed() < 10 * limit);
    // The file lock decides who owns: a busy application ends no ownership.
    let renewed = source.renew(&leases, MINUTE).await.unwrap();
    assert_eq!(renewed.held.len(), 16);
    assert!(
        source
            .read("events", 0, ReadBounds::rows(10), &[])
            .await
            .unwrap()
            .is_empty(),
        "reads go on"
    );
    transaction.rollback().await.unwrap();
    let renewed = source.renew(&leases, MINUTE).await.unwrap();
    assert_eq!(renewed.held.len(), 16, "and the lock was never lost");
}

/// A restore puts another file in place: the relay must neither read nor write the old one.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_file_is_another_history() {
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    let before = source.open().await.unwrap();
    let mut application = outbox.application().await;
    let copy = outbox.path().with_extension("copy");
    let statement = format!("VACUUM INTO '{}'", copy.display());
    sqlx::query(sqlx::AssertSqlSafe(statement))
        .execute(&mut application)
        .await
        .unwrap();
    application.close().await.unwrap();
    outbox.insert(&[NewRow::json("a", "1")]).await;
    assert_eq!(
        source
            .read("events", 0, ReadBounds::rows(10), &[])
            .await
            .unwrap()
            .len(),
        1
    );

    source.close().await;
    for suffix in ["db-wal", "db-shm"] {
        let _ = std::fs::remove_file(outbox.path().with_extension(suffix));
    }
    std::fs::rename(&copy, outbox.path()).unwrap();
    let error = source.open().await.unwrap_err();
    assert!(
        error.to_string().contains("outboxd migrate"),
        "a copy is in another mode: {error}"
    );
    outbox.admin().migrate().await.unwrap();
    let after = source.open().await.unwrap();
    assert_ne!(after.incarnation, before.incarnation);
    assert!(
        source
            .read("events", 0, ReadBounds::rows(10), &[])
            .await
            .unwrap()
            .is_empty()
    );
}

/// Abandoned calls leave nothing open behind them.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_calls_hold_nothing() {
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    for micros in (0..2_000).step_by(50) {
        let span = Duration::from_micros(micros);
        let _ = tokio::time::timeout(span, source.acquire(Uuid::nil(), MINUTE, u16::MAX)).await;
        let beat = source.goodbye(Uuid::nil());
        let _ = tokio::time::timeout(span, beat).await;
    }
    outbox.insert(&[NewRow::json("a", "1")]).await;
    let leases = source.acquire(Uuid::nil(), MINUTE, u16::MAX).await.unwrap();
    assert_eq!(leases.len(), 16);
    let other = Sqlite::new(options(&outbox.path())).unwrap();
    other.publish(&[]).await.unwrap();
}
