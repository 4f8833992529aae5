//! What the tests of the PostgreSQL source share.

use std::sync::Arc;
use std::time::Duration;

use outboxd::lease::{Lease, shard_of};
use outboxd::sink::Receipt;
use outboxd::source::postgres::{Options, Postgres};
use outboxd::source::{
    DiscardReason, Outcome, PublishedKeep, ReadBounds, Retention, Row, Source, SourceError, Verdict,
};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::support::postgres::{Database, server};
pub use crate::support::roles::{Role, grants, migrate, migrate_in, options};

pub const TTL: Duration = Duration::from_secs(15);

/// A fresh, migrated database and the relay's source on it.
pub async fn outbox() -> (Database, Postgres) {
    let database = server().await.database().await;
    migrate(&database).await;
    let source = another(&database, |_| {});
    (database, source)
}

/// Another source of the relay on the same database.
pub fn another(database: &Database, change: impl FnOnce(&mut Options)) -> Postgres {
    let mut options = options(&database.url);
    change(&mut options);
    Postgres::new(options).unwrap()
}

/// The database as another role sees it.
pub fn source_of(database: &Database, role: Role, change: impl FnOnce(&mut Options)) -> Postgres {
    another(database, |options| {
        options.url = Some(database.url_of(role).into());
        change(options);
    })
}

pub fn owner(database: &Database) -> Postgres {
    source_of(database, Role::Owner, |_| {})
}

pub fn operator(database: &Database) -> Postgres {
    source_of(database, Role::Operator, |_| {})
}

/// Inserts `count` rows over keys `k0` to `k(keys - 1)` and returns their seqs in order.
pub async fn insert(database: &Database, count: i64, keys: i64) -> Vec<i64> {
    let mut connection = database.writer().await;
    sqlx::query_scalar(
        "insert into outbox.event (kind, ordering_key, payload)
         select 'a.b', 'k' || n % $2, json_build_object('n', n) from generate_series(1, $1) as n
         returning seq",
    )
    .bind(count)
    .bind(keys)
    .fetch_all(&mut connection)
    .await
    .unwrap()
}

/// One number from the database.
pub async fn number(database: &Database, sql: &str) -> i64 {
    number_on(&mut database.connect().await, sql).await
}

/// One number about what sessions do, which only a superuser may see.
pub async fn watched(database: &Database, sql: &str) -> i64 {
    number_on(&mut database.superuser().await, sql).await
}

pub async fn number_on(connection: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(connection)
        .await
        .unwrap()
}

pub async fn text(database: &Database, sql: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(&mut database.connect().await)
        .await
        .unwrap()
}

pub async fn read(source: &Postgres) -> Vec<Row> {
    source
        .read("events", 0, ReadBounds::rows(1_000), &[])
        .await
        .unwrap()
}

pub async fn acquire(source: &Postgres) -> Vec<Lease> {
    source.acquire(Uuid::new_v4(), TTL, u16::MAX).await.unwrap()
}

/// The lease that covers a row.
pub fn lease_of(leases: &[Lease], row: &Row) -> Lease {
    let shard = shard_of(row.ordering_key.as_deref(), row.seq, 16);
    *leases.iter().find(|lease| lease.shard == shard).unwrap()
}

pub fn route(sinks: &[&str]) -> Arc<[Arc<str>]> {
    sinks.iter().map(|sink| Arc::from(*sink)).collect()
}

pub fn outcome(leases: &[Lease], row: &Row, sinks: &[&str], verdict: Verdict) -> Outcome {
    Outcome {
        seq: row.seq,
        id: row.id,
        sink: sinks[0].into(),
        route: route(sinks),
        lease: lease_of(leases, row),
        verdict,
    }
}

pub fn published() -> Verdict {
    Verdict::Published {
        attempts: 0,
        receipt: Receipt {
            stream: Some("EVENTS".into()),
            position: Some(42),
            duplicate: false,
        },
    }
}

pub fn retried(attempts: u32, retry_in: Duration) -> Verdict {
    Verdict::Retried {
        attempts,
        retry_in,
        error: "no\0 luck".into(),
    }
}

pub fn discarded() -> Verdict {
    Verdict::Discarded {
        reason: DiscardReason::Permanent,
        code: Some("too_large"),
        attempts: 1,
        error: "far too large".into(),
    }
}

pub fn retention() -> Retention {
    Retention {
        published: Duration::from_secs(7 * 86_400),
        keep: PublishedKeep::Full,
        discarded: Duration::from_secs(90 * 86_400),
    }
}

/// The error of a call that must fail.
#[track_caller]
pub fn refusal<T>(result: Result<T, SourceError>) -> SourceError {
    match result {
        Ok(_) => panic!("this must fail"),
        Err(error) => error,
    }
}
