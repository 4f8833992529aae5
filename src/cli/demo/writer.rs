//! The demo's application: changes orders and announces each change, in one transaction.
//!
//! It knows nothing of the relay, only the outbox table, as a real application would.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use uuid::Uuid;

/// The step that is the poison event, if there are that many: a row whose headers try to steer the broker.
const POISON_AT: u64 = 12;

/// Every so many transactions one is rolled back.
const ROLLBACK_EVERY: u64 = 6;

/// Events of one transaction, at most.
const MAX_EVENTS: u64 = 3;

/// An event that was inserted.
#[derive(Debug, Clone)]
pub(super) struct Inserted {
    pub(super) seq: i64,
    pub(super) id: Uuid,
    pub(super) key: String,
    pub(super) poison: bool,
}

/// What one transaction came to.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) number: u64,
    pub(super) events: Vec<Inserted>,
    pub(super) committed: bool,
}

/// The application, with its connection.
#[derive(Debug)]
pub(super) struct Writer {
    connection: SqliteConnection,
    keys: u64,
    left: u64,
    events: u64,
    number: u64,
}

impl Writer {
    /// An application that will commit `events` events about `keys` orders.
    pub(super) async fn open(path: &Path, events: u64, keys: u64) -> Result<Self, sqlx::Error> {
        let mut connection = SqliteConnectOptions::new()
            .filename(path)
            .busy_timeout(Duration::from_secs(10))
            .disable_statement_logging()
            .connect()
            .await?;
        sqlx::query(include_str!("create_orders.sql"))
            .execute(&mut connection)
            .await?;
        Ok(Self {
            connection,
            keys,
            left: events,
            events: 0,
            number: 0,
        })
    }

    /// One transaction: one to three changes, some rolled back. `None` when all events are committed.
    pub(super) async fn transaction(&mut self) -> Result<Option<Transaction>, sqlx::Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.number += 1;
        let number = self.number;
        let committed = !number.is_multiple_of(ROLLBACK_EVERY);
        let count = ((number + number / ROLLBACK_EVERY) % MAX_EVENTS + 1).min(self.left);
        let (keys, first) = (self.keys, self.events);
        // Takes the write lock at once: a transaction that reads first and writes later can fail for good.
        let mut transaction = self.connection.begin_with("BEGIN IMMEDIATE").await?;
        let mut events = Vec::new();
        for step in first..first + count {
            let poison = committed && step + 1 == POISON_AT;
            events.push(insert(&mut transaction, step, keys, poison).await?);
        }
        if committed {
            transaction.commit().await?;
            self.left -= count;
            self.events += count;
        } else {
            transaction.rollback().await?;
        }
        Ok(Some(Transaction {
            number,
            events,
            committed,
        }))
    }
}

async fn insert(
    connection: &mut SqliteConnection,
    step: u64,
    keys: u64,
    poison: bool,
) -> Result<Inserted, sqlx::Error> {
    // Seven has no factor in common with most numbers of keys, so neighbours rarely share one.
    let key = format!("order-{}", step * 7 % keys + 1);
    sqlx::query(include_str!("advance_order.sql"))
        .bind(&key)
        .execute(&mut *connection)
        .await?;
    let payload = json!({ "order": key, "step": step + 1 }).to_string();
    let headers = if poison {
        json!({ "Nats-Rollup": "all" })
    } else {
        json!({ "request_id": format!("demo-{}", step + 1) })
    };
    let (seq, id): (i64, String) = sqlx::query_as(include_str!("insert_event.sql"))
        .bind("order.changed")
        .bind(&key)
        .bind(payload)
        .bind(headers.to_string())
        .fetch_one(&mut *connection)
        .await?;
    let id = Uuid::parse_str(&id).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Inserted {
        seq,
        id,
        key,
        poison,
    })
}
