//! Wake-up by watching the files.

use std::time::{Duration, Instant};

use outboxd::source::Listener;
use outboxd::source::ReadBounds;
use outboxd::testing::source::{NewRow, Outbox as _};
use uuid::Uuid;

use crate::source_conformance::sqlite::SqliteOutbox;

async fn silent(listener: &mut dyn Listener, span: Duration) -> bool {
    tokio::time::timeout(span, listener.wait()).await.is_err()
}

/// The relay's own settling and renewing is no news to it.
#[tokio::test(flavor = "multi_thread")]
async fn own_writes_do_not_wake() {
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    let mut listener = source.listen().await.unwrap().unwrap();
    while !silent(&mut *listener, Duration::from_millis(300)).await {}
    for _ in 0..5 {
        source.goodbye(Uuid::nil()).await.unwrap();
        let minute = Duration::from_secs(60);
        let leases = source.acquire(Uuid::nil(), minute, u16::MAX).await.unwrap();
        source.renew(&leases, minute).await.unwrap();
        assert!(silent(&mut *listener, Duration::from_millis(100)).await);
    }
    outbox.insert(&[NewRow::json("a", "1")]).await;
    assert!(
        !silent(&mut *listener, Duration::from_secs(10)).await,
        "another's write does"
    );
}

/// Commits that follow each other within the coarseness of a file's time are all heard of.
#[tokio::test(flavor = "multi_thread")]
async fn no_commit_is_slept_through() {
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    let mut listener = source.listen().await.unwrap().unwrap();
    let (mut after, mut slowest, mut sum) = (0, Duration::ZERO, Duration::ZERO);
    for n in 0..100 {
        let at = outbox.insert(&[NewRow::json("a", "1")]).await;
        let committed = Instant::now();
        loop {
            let rows = source
                .read("events", after, ReadBounds::rows(10), &[])
                .await
                .unwrap();
            if let Some(last) = rows.last() {
                after = last.seq;
                break;
            }
            let wait = tokio::time::timeout(Duration::from_secs(10), listener.wait()).await;
            wait.unwrap_or_else(|_| panic!("commit {n} was slept through"))
                .unwrap();
        }
        assert_eq!(after, at[0].seq);
        slowest = slowest.max(committed.elapsed());
        sum += committed.elapsed();
    }
    assert!(
        slowest < Duration::from_secs(1),
        "slowest {slowest:?}, mean {:?}",
        sum / 100
    );
}

/// A checkpoint, and a log that starts again from its beginning, hide nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_log_is_noticed() {
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    let mut listener = source.listen().await.unwrap().unwrap();
    let mut application = outbox.application().await;
    for _ in 0..20 {
        while !silent(&mut *listener, Duration::from_millis(80)).await {}
        let restart = "PRAGMA wal_checkpoint(RESTART)";
        sqlx::query(restart)
            .execute(&mut application)
            .await
            .unwrap();
        let insert = "INSERT INTO outbox_event (kind, payload) VALUES ('a', '1')";
        sqlx::query(insert).execute(&mut application).await.unwrap();
        assert!(!silent(&mut *listener, Duration::from_secs(10)).await);
    }
}

/// Waits that are abandoned in the middle of a look, over and over, and commits that are seen half-way.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_looks_lose_no_commit() {
    let outbox = SqliteOutbox::new().await;
    let source = outbox.source();
    let mut listener = source.listen().await.unwrap().unwrap();
    let mut after = 0;
    for n in 0..300_u64 {
        outbox.insert(&[NewRow::json("a", "0")]).await;
        for part in 0..4 {
            let span = Duration::from_micros((n * 137 + part * 1_511) % 6_000);
            let _ = silent(&mut *listener, span).await;
        }
        let new = [NewRow::json("a", "1")];
        let write = outbox.insert(&new);
        let read = async {
            let mut last = after;
            loop {
                let rows = source
                    .read("events", last, ReadBounds::rows(10), &[])
                    .await
                    .unwrap();
                last = rows.last().map_or(last, |row| row.seq);
                if last >= after + 2 {
                    return last;
                }
                let heard = !silent(&mut *listener, Duration::from_secs(5)).await;
                assert!(heard, "commit {n} was slept through");
            }
        };
        (_, after) = tokio::join!(write, read);
    }
}
