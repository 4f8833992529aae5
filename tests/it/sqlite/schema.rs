//! Migrations and the check at start.

use outboxd::source::admin::Admin as _;
use outboxd::source::sqlite::Sqlite;
use outboxd::source::{ReadBounds, Source as _, SourceErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use crate::source_conformance::sqlite::{SqliteOutbox, options};

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_may_migrate_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let mut migrations = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let source = Sqlite::new(options(&path)).unwrap();
        migrations.spawn(async move { source.migrate().await.unwrap() });
    }
    let done = migrations.join_all().await;
    let first = done.iter().filter(|migrated| migrated.from == 0).count();
    assert_eq!(first, 1, "exactly one did it: {done:?}");
    let source = Sqlite::new(options(&path)).unwrap();
    assert_eq!(source.open().await.unwrap().shards, 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_there_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let source = Sqlite::new(options(&path)).unwrap();
    let error = source.open().await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unusable);
    assert!(error.to_string().contains("no such file"), "{error}");
    assert!(error.to_string().contains("outboxd migrate"), "{error}");
    assert!(
        source
            .read("events", 0, ReadBounds::rows(1), &[])
            .await
            .is_err()
    );
    assert_eq!(source.pending_sql().await.unwrap().len(), 1);
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_outbox_is_said_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let source = Sqlite::new(options(&path)).unwrap();
    std::fs::write(
        &path,
        "this is no database, only a text of some length".repeat(100),
    )
    .unwrap();
    let error = source.open().await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unusable, "{error}");

    std::fs::remove_file(&path).unwrap();
    let mut application = plain(&path).await;
    application.execute("CREATE TABLE own (n)").await.unwrap();
    let error = source.open().await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unusable);
    assert!(error.to_string().contains("outboxd migrate"), "{error}");
    let error = source
        .read("events", 0, ReadBounds::rows(1), &[])
        .await
        .unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unusable);
    assert!(error.to_string().contains("outboxd migrate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_left_alone() {
    let outbox = SqliteOutbox::new().await;
    let mut application = outbox.application().await;
    let newer = "INSERT INTO outbox_migration (version, name) VALUES (1000, 'of_the_future')";
    application.execute(newer).await.unwrap();
    let source = Sqlite::new(options(&outbox.path())).unwrap();
    for error in [
        source.open().await.unwrap_err(),
        source.migrate().await.unwrap_err(),
        source.pending_sql().await.unwrap_err(),
    ] {
        assert_eq!(error.kind, SourceErrorKind::Unusable);
        assert!(error.to_string().contains("newer outboxd"), "{error}");
    }
}

/// An application with migrations and data of its own: neither mentions the other.
#[tokio::test(flavor = "multi_thread")]
async fn an_existing_application_keeps_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let mut application = plain(&path).await;
    application
        .execute(
            "CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL);
             INSERT INTO _sqlx_migrations VALUES (1, 'own');
             CREATE TABLE own (n);
             INSERT INTO own VALUES (1);",
        )
        .await
        .unwrap();
    let source = Sqlite::new(options(&path)).unwrap();
    let migrated = source.migrate().await.unwrap();
    assert_eq!(migrated.from, 0);
    source.open().await.unwrap();
    let query = sqlx::query_scalar("SELECT count(*) FROM _sqlx_migrations");
    let own: i64 = query.fetch_one(&mut application).await.unwrap();
    assert_eq!(own, 1);
    let names = "SELECT count(*) FROM sqlite_schema WHERE type = 'table'
        AND name NOT LIKE 'outbox@_%' ESCAPE '@' AND name NOT LIKE 'sqlite@_%' ESCAPE '@'";
    let others: i64 = sqlx::query_scalar(names)
        .fetch_one(&mut application)
        .await
        .unwrap();
    assert_eq!(others, 2, "every name of ours begins with outbox_");
}

/// What `migrate --dry-run` prints does, run by hand, what `migrate` does.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_sql_is_the_migration() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let source = Sqlite::new(options(&path)).unwrap();
    let mut application = plain(&path).await;
    for pending in source.pending_sql().await.unwrap() {
        let sql = sqlx::AssertSqlSafe(pending.sql);
        sqlx::raw_sql(sql).execute(&mut application).await.unwrap();
    }
    source.open().await.unwrap();
    let migrated = source.migrate().await.unwrap();
    assert_eq!(migrated.from, migrated.to);
}

#[tokio::test(flavor = "multi_thread")]
async fn wal_mode_is_checked_and_restored() {
    let outbox = SqliteOutbox::new().await;
    let source = Sqlite::new(options(&outbox.path())).unwrap();
    let mut application = outbox.application().await;
    application
        .execute("PRAGMA journal_mode = DELETE")
        .await
        .unwrap();
    application.close().await.unwrap();
    let error = source.open().await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unusable);
    assert!(error.to_string().contains("WAL"), "{error}");
    source.migrate().await.unwrap();
    source.open().await.unwrap();
}

#[test]
fn paths_that_are_no_file_are_refused_at_once() {
    for path in ["", ":memory:", "file:app.db?mode=memory"] {
        assert!(Sqlite::new(options(path.as_ref())).is_err(), "{path:?}");
    }
}

async fn plain(path: &std::path::Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Delete)
        .connect()
        .await
        .unwrap()
}
