//! What a delivered event costs the database: statements, transactions and rows written, counted by PostgreSQL
//! itself over a deep backlog.

use std::sync::Arc;
use std::time::Duration;

use outboxd::relay::{self, DatabaseOptions, Options, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::PublishError;
use outboxd::sink::memory::{Answer, Memory};
use outboxd::source::postgres::Postgres;
use outboxd::source::{PublishedKeep, Source};

use crate::postgres_fixture::{migrate, number, options};
use crate::support::eventually;
use crate::support::postgres::{Database, Server};

const EVENTS: i64 = 40_000;
const LONG: Duration = Duration::from_secs(120);

/// Statements and transactions an event may cost; 0.006 to 0.014 were seen. One per event anywhere would be 1.
const STATEMENTS: f64 = 0.02;

/// Bytes of write-ahead log an event of 1 KiB may cost, without history and with it; 123 and 1,401 were seen. There
/// are no full-page images in it.
const WAL: f64 = 150.0;
const WAL_WITH_HISTORY: f64 = 1_690.0;

/// A server that logs every statement that it runs.
async fn server() -> Server {
    Server::start_own(&[("log_statement", "all"), ("log_parameter_max_length", "0")]).await
}

/// What delivering a backlog took.
#[derive(Debug)]
struct Work {
    /// Statements and transactions, per event.
    statements: f64,
    transactions: f64,
    /// Rows inserted, updated and deleted, per event.
    inserted: f64,
    updated: f64,
    deleted: f64,
    /// Bytes of write-ahead log, per event.
    wal: f64,
}

/// Delivers a backlog whose keys are `key` (SQL over the number `n`), and counts.
async fn deliver(server: &Server, keep: PublishedKeep, key: &str) -> Work {
    let database = server.database().await;
    migrate(&database).await;
    fill(&database, key).await;
    settled_statistics(&database, "event", "n_tup_ins", EVENTS).await;
    let statements = statements(server, &database);
    let counted = counts(&database).await;

    let sinks = [Memory::new()];
    let relay = relay::start(relay_options(source_arc(&database, keep), &sinks))
        .await
        .unwrap();
    tokio::time::timeout(LONG, relay.drained()).await.unwrap();
    let statements = self::statements(server, &database) - statements;
    relay.shutdown().await.unwrap();
    assert_eq!(sinks[0].received().len(), EVENTS as usize);
    settled_statistics(&database, "event", "n_tup_del", EVENTS).await;

    let after = counts(&database).await;
    let per_event = |after: i64, before: i64| (after - before) as f64 / EVENTS as f64;
    Work {
        statements: statements as f64 / EVENTS as f64,
        transactions: per_event(after[0], counted[0]),
        inserted: per_event(after[1], counted[1]),
        updated: per_event(after[2], counted[2]),
        deleted: per_event(after[3], counted[3]),
        wal: per_event(after[4], counted[4]),
    }
}

/// A backlog of 1 KiB events whose keys are `key` (SQL over the number `n`).
async fn fill(database: &Database, key: &str) {
    database
        .execute(&format!(
            "insert into outbox.event (kind, ordering_key, payload)
               select 'a.b', {key}, json_build_object('n', n, 'x', repeat('y', 1000)) from generate_series(1, {EVENTS}) n;
             analyze outbox.event"
        ))
        .await;
}

fn source(database: &Database, keep: PublishedKeep) -> Postgres {
    let mut options = options(&database.url);
    options.keep = keep;
    Postgres::new(options).unwrap()
}

fn source_arc(database: &Database, keep: PublishedKeep) -> Arc<dyn Source> {
    Arc::new(source(database, keep))
}

/// To as many sinks, which all get everything.
fn relay_options(source: Arc<dyn Source>, sinks: &[Memory]) -> Options {
    let sinks: Vec<_> = sinks
        .iter()
        .enumerate()
        .map(|(index, sink)| SinkOptions::new(format!("s{index}"), Arc::new(sink.clone())))
        .collect();
    let route = Route {
        name: "all".into(),
        kinds: vec!["*".into()],
        sinks: sinks
            .iter()
            .map(|sink| Arc::from(sink.name.as_str()))
            .collect(),
        retry: Policy::default(),
    };
    Options::new(
        vec![DatabaseOptions::new(source)],
        sinks,
        Routes::new(vec![route]),
    )
}

/// Statements that the server has run in this database, by its log. A statement may have several lines; the
/// first names it.
fn statements(server: &Server, database: &Database) -> usize {
    let mine = format!(" {} LOG:  ", database.name);
    let log = server.log();
    log.lines()
        .filter_map(|line| line.split_once(&mine))
        .filter(|(_, what)| what.starts_with("execute ") || what.starts_with("statement: "))
        .count()
}

/// Transactions committed, rows inserted, updated, deleted in the outbox; bytes of write-ahead log of the server.
async fn counts(database: &Database) -> [i64; 5] {
    let sum = |column: &str| {
        format!(
            "select coalesce(sum({column}), 0)::bigint from pg_stat_user_tables where schemaname = 'outbox'"
        )
    };
    let transactions = format!(
        "select xact_commit from pg_stat_database where datname = '{}'",
        database.name
    );
    [
        number(database, &transactions).await,
        number(database, &sum("n_tup_ins")).await,
        number(database, &sum("n_tup_upd")).await,
        number(database, &sum("n_tup_del")).await,
        number(
            database,
            "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint",
        )
        .await,
    ]
}

/// The server adds up what a session did when it ends, a little later.
async fn settled_statistics(database: &Database, table: &str, column: &str, at_least: i64) {
    let sql = format!(
        "select coalesce(max({column}), 0)::bigint from pg_stat_user_tables where schemaname = 'outbox' and relname = '{table}'"
    );
    eventually(LONG, "the server's statistics are complete", || async {
        let seen = number(database, &sql).await;
        (seen >= at_least)
            .then_some(())
            .ok_or(format!("{column} is {seen}"))
    })
    .await;
}

fn within(work: &Work, inserted: f64) {
    assert!(work.statements < STATEMENTS, "{work:?}");
    assert!(work.transactions < STATEMENTS, "{work:?}");
    // The event's own row is deleted once; what is kept of it is inserted once; the rest is leases and the like.
    assert!(work.deleted < 1.01, "{work:?}");
    assert!(work.inserted < inserted + 0.01, "{work:?}");
    assert!(work.updated < 0.01, "{work:?}");
    let wal = if inserted > 0.0 {
        WAL_WITH_HISTORY
    } else {
        WAL
    };
    assert!(work.wal < wal, "{work:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_is_run_once_per_event() {
    let server = server().await;
    let keys = "'k' || n % 1000";
    within(&deliver(&server, PublishedKeep::None, keys).await, 0.0);
    within(&deliver(&server, PublishedKeep::Full, keys).await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_for_one_hot_key_or_for_none() {
    let server = server().await;
    within(&deliver(&server, PublishedKeep::None, "'hot'").await, 0.0);
    within(&deliver(&server, PublishedKeep::None, "null").await, 0.0);
}

/// Marks are looked up row by row. A plan that walks them reads each of them with each read, which shows here as
/// hundreds of index entries an event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_that_stay_because_one_sink_takes_nothing_cost_the_others_no_more_with_each_read() {
    let server = server().await;
    let database = server.database().await;
    migrate(&database).await;
    fill(&database, "'k' || n % 500").await;
    let sinks = [Memory::new(), Memory::new(), Memory::new()];
    sinks[2].on(|_| Some(Answer::Fail(PublishError::unavailable("full"))));
    let relay = relay::start(relay_options(
        source_arc(&database, PublishedKeep::None),
        &sinks,
    ))
    .await
    .unwrap();
    for sink in &sinks[..2] {
        sink.wait_for(EVENTS as usize, LONG).await.unwrap();
    }
    let marks = "select count(*) from outbox.delivery where state = 'published'";
    eventually(LONG, "everything is settled", || async {
        let seen = number(&database, marks).await;
        (seen == 2 * EVENTS).then_some(()).ok_or(seen.to_string())
    })
    .await;
    relay.shutdown().await.unwrap();
    settled_statistics(&database, "delivery", "n_tup_ins", 2 * EVENTS).await;
    let read =
        "select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relname = 'delivery'";
    let per_event = number(&database, read).await as f64 / EVENTS as f64;
    assert!(per_event < 10.0, "{per_event} entries read an event");
}
