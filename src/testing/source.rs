//! The conformance suite for [`Source`] and its [`Admin`] side.
//!
//! An implementation writes a [`Bench`] that makes empty outboxes and inserts rows the way an application
//! would, and calls [`conformance`] from one test. Every case gets an outbox of its own.
//!
//! ```no_run
//! # async fn example(bench: &dyn outboxd::testing::source::Bench) {
//! outboxd::testing::source::conformance(bench).await;
//! # }
//! ```

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::event::Payload;
use crate::lease::{Lease, shard_of};
use crate::sink::Receipt;
use crate::source::admin::Admin;
use crate::source::{Outcome, ReadBounds, Row, Source, Verdict};

mod deciding;
mod dying;
mod holding;
mod leasing;
mod operating;
mod reading;
mod settling;
mod trailing;
mod waking;
mod walking;

/// Number of shards that every outbox of a bench must have.
pub const SHARDS: u16 = 16;

/// How long a case waits for something that must happen soon.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What the suite needs to know about an implementation.
#[async_trait]
pub trait Bench: Send + Sync {
    /// A new, empty, migrated outbox with [`SHARDS`] shards that keeps published events in full.
    async fn outbox(&self) -> Box<dyn Outbox>;
}

/// One outbox, seen from all sides.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// The source under test. Always the same one.
    fn source(&self) -> Arc<dyn Source>;

    /// Its operators' side.
    fn admin(&self) -> Arc<dyn Admin>;

    /// A further source on the same outbox, as another process would have it.
    async fn another(&self) -> Arc<dyn Source>;

    /// Inserts rows, in order, in one transaction of a connection of its own, and commits.
    async fn insert(&self, rows: &[NewRow]) -> Vec<Inserted>;

    /// Opens a transaction that stays open. `None` where the database has a single writer at a time, so
    /// that the order of commits is the order of seqs.
    async fn begin(&self) -> Option<Box<dyn OpenTransaction>>;

    /// The history of published events.
    async fn history(&self) -> Vec<Kept>;

    /// Do leases run out by time? (Not where something else, such as a file lock, decides.)
    fn leases_expire(&self) -> bool {
        true
    }
}

/// A writer's transaction that the case holds open.
#[async_trait]
pub trait OpenTransaction: Send {
    /// Inserts a row; it becomes visible with the commit.
    async fn insert(&mut self, row: &NewRow) -> Inserted;

    /// Commits.
    async fn commit(self: Box<Self>);

    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

/// A row to insert.
#[derive(Debug, Clone)]
pub struct NewRow {
    /// Kind.
    pub kind: String,
    /// Key.
    pub ordering_key: Option<String>,
    /// Body.
    pub payload: Payload,
    /// Content type.
    pub content_type: Option<String>,
    /// Headers as JSON text; `None` leaves the column's default.
    pub headers: Option<String>,
    /// Delay until it is due; zero leaves the column's default.
    pub delay: Duration,
    /// Identity; `None` leaves the column's default.
    pub id: Option<Uuid>,
}

impl NewRow {
    /// A row with a JSON body and no key.
    pub fn json(kind: &str, payload: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            ordering_key: None,
            payload: Payload::Json(Bytes::copy_from_slice(payload.as_bytes())),
            content_type: None,
            headers: None,
            delay: Duration::ZERO,
            id: None,
        }
    }

    /// A row with any bytes as its body and no key.
    pub fn bytes(kind: &str, payload: &[u8]) -> Self {
        Self {
            payload: Payload::Bytes(Bytes::copy_from_slice(payload)),
            ..Self::json(kind, "")
        }
    }

    /// With this key.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.ordering_key = Some(key.to_owned());
        self
    }

    /// Due later.
    #[must_use]
    pub fn delayed(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

/// A row that was inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inserted {
    /// Place.
    pub seq: i64,
    /// Identity.
    pub id: Uuid,
}

/// A row of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Place it had.
    pub seq: i64,
    /// Identity.
    pub id: Uuid,
    /// To which sink.
    pub sink: String,
    /// Stream of the receipt.
    pub stream: Option<String>,
    /// Position of the receipt.
    pub position: Option<i64>,
    /// The payload, when it is kept.
    pub payload: Option<Vec<u8>>,
}

/// One promise.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    run: for<'a> fn(&'a dyn Outbox) -> BoxFuture<'a, ()>,
}

/// Makes a list of cases out of async functions; the name of a case is the name of its function.
macro_rules! list {
    ($($name:ident),* $(,)?) => {
        &[$($crate::testing::source::Case {
            name: stringify!($name),
            run: |outbox| ::futures_util::FutureExt::boxed($name(outbox)),
        }),*]
    };
}
use list;

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    [
        reading::CASES,
        walking::CASES,
        settling::CASES,
        deciding::CASES,
        holding::CASES,
        leasing::CASES,
        dying::CASES,
        operating::CASES,
        trailing::CASES,
        waking::CASES,
    ]
    .concat()
}

/// Runs every case, each on an outbox of its own, and reports all failures together.
///
/// # Panics
/// When a case fails: with the names of the failed cases and what each expected.
pub async fn conformance(bench: &dyn Bench) {
    let mut failures = Vec::new();
    let cases = cases();
    for case in &cases {
        if let Err(failure) = run(bench, case).await {
            failures.push(format!("{}: {failure}", case.name));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} cases failed:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

/// Runs the case of this name, for work on one promise.
///
/// # Panics
/// When the case fails, or when there is none of this name.
pub async fn conformance_case(bench: &dyn Bench, name: &str) {
    let case = cases().into_iter().find(|case| case.name == name);
    let case = case.unwrap_or_else(|| panic!("there is no case named {name}"));
    if let Err(failure) = run(bench, &case).await {
        panic!("{name}: {failure}");
    }
}

async fn run(bench: &dyn Bench, case: &Case) -> Result<(), String> {
    const LIMIT: Duration = Duration::from_secs(60);
    let outbox = bench.outbox().await;
    let attempt = AssertUnwindSafe(async {
        outbox.source().open().await.expect("open");
        (case.run)(&*outbox).await;
        outbox.source().close().await;
    });
    match tokio::time::timeout(LIMIT, attempt.catch_unwind()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(panic)) => Err(words(&*panic)),
        Err(_) => Err(format!("no end within {LIMIT:?}")),
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    match (
        panic.downcast_ref::<String>(),
        panic.downcast_ref::<&'static str>(),
    ) {
        (Some(text), _) => text.clone(),
        (None, Some(text)) => (*text).to_owned(),
        (None, None) => "panicked".to_owned(),
    }
}

// What several cases use.

/// The sink of most cases.
const SINK: &str = "events";

fn route(sinks: &[&str]) -> Arc<[Arc<str>]> {
    sinks.iter().map(|sink| Arc::from(*sink)).collect()
}

/// Takes all shards.
async fn own(source: &dyn Source) -> Held {
    let leases = source
        .acquire(Uuid::now_v7(), Duration::from_secs(60), u16::MAX)
        .await
        .expect("acquire");
    assert_eq!(leases.len(), usize::from(SHARDS), "all shards are free");
    Held(leases)
}

/// The leases of a case, to make outcomes with.
struct Held(Vec<Lease>);

impl Held {
    fn lease(&self, key: Option<&str>, seq: i64) -> Lease {
        let shard = shard_of(key, seq, SHARDS);
        let lease = self.0.iter().find(|lease| lease.shard == shard);
        *lease.expect("every shard is held")
    }

    /// An outcome for a row, for the first sink of `sinks`, which are its route.
    fn outcome(
        &self,
        at: Inserted,
        key: Option<&str>,
        sinks: &[&str],
        verdict: Verdict,
    ) -> Outcome {
        Outcome {
            seq: at.seq,
            id: at.id,
            sink: Arc::from(sinks[0]),
            route: route(sinks),
            lease: self.lease(key, at.seq),
            verdict,
        }
    }
}

/// `outcome` under a token that never held.
fn fenced(mut outcome: Outcome) -> Outcome {
    outcome.lease.token -= 1;
    outcome
}

fn published() -> Verdict {
    Verdict::Published {
        attempts: 0,
        receipt: Receipt {
            stream: Some("EVENTS".to_owned()),
            position: Some(7),
            duplicate: false,
        },
    }
}

fn retried(attempts: u32, retry_in: Duration) -> Verdict {
    Verdict::Retried {
        attempts,
        retry_in,
        error: "it did not work".to_owned(),
    }
}

fn discarded() -> Verdict {
    Verdict::Discarded {
        reason: crate::source::DiscardReason::Permanent,
        code: Some("too_large"),
        attempts: 1,
        error: "it is too large".to_owned(),
    }
}

async fn settle(source: &dyn Source, outcomes: &[Outcome]) -> Vec<bool> {
    source.settle(outcomes, true).await.expect("settle")
}

/// Every visible row of the feed to `sink`.
async fn read_all(source: &dyn Source, sink: &str) -> Vec<Row> {
    source
        .read(sink, 0, ReadBounds::rows(10_000), &[])
        .await
        .expect("read")
}

async fn row(source: &dyn Source, sink: &str, seq: i64) -> Option<Row> {
    let rows = read_all(source, sink).await;
    rows.into_iter().find(|row| row.seq == seq)
}

fn seqs(rows: &[Row]) -> Vec<i64> {
    rows.iter().map(|row| row.seq).collect()
}

fn places(rows: &[Inserted]) -> Vec<i64> {
    rows.iter().map(|row| row.seq).collect()
}
