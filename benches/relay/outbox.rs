//! Outboxes in PostgreSQL, and what fills them.

use std::sync::Arc;
use std::time::Duration;

use outboxd::sink::nats::Mode;
use outboxd::source::PublishedKeep;
use outboxd::source::postgres::Postgres;
use sqlx::AssertSqlSafe;

use crate::it::support::postgres::Database;
use crate::it::support::roles;
use crate::process::{From, Relayed, To};
use crate::stage::Stage;

/// How far the keys of a backlog spread.
#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// Over so many, at random.
    Over(u32),
    /// Over so many, the most frequent one as often as Zipf's law with s = 1 has it (in its continuous form).
    Zipf(u32),
    /// Of so many each has its events one after the other.
    Successive(u32),
    /// All events have the same.
    One,
    /// None has one.
    None,
}

/// Rows to insert.
#[derive(Debug, Clone, Copy)]
pub struct Fill {
    pub events: u32,
    pub keys: Keys,
    /// Of the payload.
    pub bytes: u32,
}

impl Fill {
    /// 1 KiB events.
    pub fn new(events: u32, keys: Keys) -> Self {
        Self {
            events,
            keys,
            bytes: 1_024,
        }
    }

    pub fn bytes(mut self, bytes: u32) -> Self {
        self.bytes = bytes;
        self
    }

    /// The ordering key as SQL over the number `n`.
    pub fn key(&self) -> String {
        // A hash of the number: spread at random, the same in every run.
        let random = "(hashint4(n) & 2147483647)";
        match self.keys {
            Keys::Over(keys) => format!("'k' || {random} % {keys}"),
            Keys::Zipf(keys) => {
                format!("'k' || floor(power({keys}.0::float8, {random} / 2147483648.0))::int")
            }
            Keys::Successive(keys) => format!("'k' || (n - 1) / {}", (self.events / keys).max(1)),
            Keys::One => "'hot'".to_owned(),
            Keys::None => "null".to_owned(),
        }
    }

    /// The payload as SQL over the number `n`.
    pub fn payload(&self) -> String {
        // What stands around the filling has some 20 bytes.
        let filling = self.bytes.saturating_sub(24);
        // PostgreSQL compresses rows of more than 2 KiB: of the same letter nothing would be left.
        let filling = if self.bytes > 1_500 {
            format!(
                "(select string_agg(md5(i::text), '') from generate_series(1, {}) i)",
                filling / 32
            )
        } else {
            format!("repeat('y', {filling})")
        };
        format!("json_build_object('n', n, 'x', {filling})")
    }
}

/// An outbox in PostgreSQL.
pub struct Outbox {
    pub database: Database,
    pub keep: PublishedKeep,
}

impl Outbox {
    /// A new, migrated, empty one.
    pub async fn new(stage: &Stage, keep: PublishedKeep) -> Self {
        let database = stage.postgres.database().await;
        roles::migrate(&database).await;
        Self { database, keep }
    }

    /// With these rows, at rest.
    pub async fn filled(stage: &Stage, keep: PublishedKeep, fill: Fill) -> Self {
        let outbox = Self::new(stage, keep).await;
        outbox.fill(fill).await;
        outbox.rest().await;
        outbox
    }

    pub async fn fill(&self, fill: Fill) {
        let sql = format!(
            "insert into outbox.event (kind, ordering_key, payload, headers)
               select 'order.changed', {}, {}, jsonb_build_object('request_id', 'r-' || n)
               from generate_series(1, {}) n",
            fill.key(),
            fill.payload(),
            fill.events
        );
        self.database.execute(&sql).await;
    }

    /// Nothing is left to do for the server.
    pub async fn rest(&self) {
        for sql in ["vacuum analyze outbox.event", "checkpoint"] {
            self.database.execute_as_superuser(sql).await;
        }
    }

    /// A source on it, with connections of its own.
    pub fn source(&self) -> Arc<Postgres> {
        let options = outboxd::source::postgres::Options {
            keep: self.keep,
            statement_timeout: Duration::from_secs(30),
            ..roles::options(&self.database.url)
        };
        Arc::new(Postgres::new(options).unwrap())
    }

    /// A relay of it into the stream.
    pub fn relayed(&self, stage: &Stage) -> Relayed {
        Relayed {
            from: From::Postgres {
                url: self.database.url.clone(),
                listen: true,
            },
            to: To::Nats {
                url: stage.nats.url(),
                mode: Mode::Auto,
            },
            keep: self.keep,
            poison: false,
            count: false,
        }
    }

    /// The number that a query gives.
    pub async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.database.connect().await;
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&mut connection)
            .await
            .unwrap()
    }

    /// What is wrong, if `pending` rows should be left and `events` be finished.
    pub async fn findings(&self, pending: u64, events: u64) -> Vec<String> {
        let mut findings = Vec::new();
        let left = self.number("select count(*) from outbox.event").await;
        if left != i64::try_from(pending).unwrap() {
            findings.push(format!("{left} events are pending instead of {pending}"));
        }
        let discarded = self.number("select count(*) from outbox.discarded").await;
        if discarded != 0 {
            findings.push(format!("{discarded} events were discarded"));
        }
        let kept = self.number("select count(*) from outbox.published").await;
        let wanted = match self.keep {
            PublishedKeep::None => 0,
            PublishedKeep::Receipt | PublishedKeep::Full => i64::try_from(events).unwrap(),
        };
        if kept != wanted {
            findings.push(format!("{kept} events in the history instead of {wanted}"));
        }
        findings
    }
}
