//! Writers that go on through outages and note what became of each transaction.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{Connection, PgConnection, Postgres, Transaction};
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use super::bench::Written;

/// Events of one transaction.
const ROWS: usize = 3;

/// The pace of a writer: what is looked at is an outage, not a backlog.
const PACE: Duration = Duration::from_millis(20);

/// How long a writer waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// What writers know in the end: events whose commit was answered, and events whose commit was not.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    pub committed: Vec<Written>,
    pub unanswered: Vec<Written>,
}

/// Four writers with 25 keys each.
pub struct Writers {
    stop: Arc<AtomicBool>,
    ledger: Arc<Mutex<Ledger>>,
    tasks: JoinSet<()>,
}

impl Writers {
    /// They begin at once, each transaction once, round their keys.
    pub fn start(url: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ledger = Arc::new(Mutex::default());
        let mut tasks = JoinSet::new();
        for writer in 0..4 {
            let writer = Writer {
                url: url.to_owned(),
                keys: (0..25).map(|key| format!("k{writer}-{key}")).collect(),
                stop: Arc::clone(&stop),
                ledger: Arc::clone(&ledger),
            };
            tasks.spawn(writer.write());
        }
        Self {
            stop,
            ledger,
            tasks,
        }
    }

    /// What they know by now.
    pub fn ledger(&self) -> Ledger {
        self.ledger.lock().unwrap().clone()
    }

    /// They end; what they know.
    pub async fn stop(self) -> Ledger {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
        std::mem::take(&mut self.ledger.lock().unwrap())
    }
}

struct Writer {
    url: String,
    keys: Vec<String>,
    stop: Arc<AtomicBool>,
    ledger: Arc<Mutex<Ledger>>,
}

impl Writer {
    async fn write(self) {
        let mut connection: Option<PgConnection> = None;
        for key in self.keys.iter().cycle() {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            if connection.is_none() {
                let opened = timeout(PATIENCE, PgConnection::connect(&self.url)).await;
                connection = opened.ok().and_then(Result::ok);
            }
            if let Some(open) = connection.as_mut() {
                let done = one_transaction(open, key).await;
                let mut ledger = self.ledger.lock().unwrap();
                match done {
                    Ok(written) => ledger.committed.extend(written),
                    Err(unanswered) => {
                        ledger.unanswered.extend(unanswered);
                        connection = None;
                    }
                }
            }
            // The pace itself.
            tokio::time::sleep(PACE).await;
        }
    }
}

/// Inserts and commits. The error holds what may have been committed all the same.
async fn one_transaction(
    connection: &mut PgConnection,
    key: &str,
) -> Result<Vec<Written>, Vec<Written>> {
    let inserted = timeout(PATIENCE, insert(connection, key)).await;
    let (transaction, rows) = inserted.ok().and_then(Result::ok).ok_or_else(Vec::new)?;
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
    match timeout(PATIENCE, transaction.commit()).await {
        Ok(Ok(())) => Ok(written),
        _ => Err(written),
    }
}

async fn insert<'c>(
    connection: &'c mut PgConnection,
    key: &str,
) -> Result<(Transaction<'c, Postgres>, Vec<(Uuid, i64)>), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let rows = sqlx::query_as(
        "insert into outbox.event (kind, ordering_key, payload)
         select 'order.made', $1, json_build_object('n', n) from generate_series(1, $2) as n
         order by n
         returning id, seq",
    )
    .bind(key)
    .bind(ROWS as i64)
    .fetch_all(&mut *transaction)
    .await?;
    Ok((transaction, rows))
}

/// Those of the events that are among the `found`: whole transactions only.
#[track_caller]
pub fn whole<'a>(
    events: &'a [Written],
    found: &'a HashSet<Uuid>,
) -> impl Iterator<Item = Written> + 'a {
    events.chunks(ROWS).flat_map(move |transaction| {
        let there: Vec<_> = transaction
            .iter()
            .filter(|event| found.contains(&event.id))
            .cloned()
            .collect();
        let count = there.len();
        assert!(count == 0 || count == ROWS, "{count} of a transaction");
        there
    })
}
