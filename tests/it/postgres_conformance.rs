//! PostgreSQL keeps every promise of a source, directly and by way of a pooler in transaction mode.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd::event::Payload;
use outboxd::source::Source;
use outboxd::source::admin::Admin;
use outboxd::source::postgres::{Pooler, Postgres};
use outboxd::testing::source::{
    Bench, Inserted, Kept, NewRow, OpenTransaction, Outbox, conformance,
};
use sqlx::{PgConnection, Row as _};

use crate::postgres_fixture::*;
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::{Database, server};

#[tokio::test(flavor = "multi_thread")]
async fn postgres_conforms() {
    conformance(&PostgresBench { pooler: None }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_behind_a_pooler_conforms() {
    let pooler = PgBouncer::start(server().await, "").await;
    conformance(&PostgresBench {
        pooler: Some(pooler),
    })
    .await;
}

struct PostgresBench {
    pooler: Option<PgBouncer>,
}

impl PostgresBench {
    fn source(&self, database: &Database) -> Postgres {
        another(database, |options| {
            if let Some(pooler) = &self.pooler {
                options.url = Some(pooler.url(database).into());
                options.pooler = Pooler::Transaction;
            }
        })
    }
}

#[async_trait]
impl Bench for PostgresBench {
    async fn outbox(&self) -> Box<dyn Outbox> {
        let database = server().await.database().await;
        migrate(&database).await;
        let source = self.source(&database);
        Box::new(PostgresOutbox {
            another: Arc::new(self.source(&database)),
            source: Arc::new(source),
            operator: Arc::new(operator(&database)),
            database,
        })
    }
}

struct PostgresOutbox {
    database: Database,
    source: Arc<Postgres>,
    operator: Arc<Postgres>,
    another: Arc<Postgres>,
}

#[async_trait]
impl Outbox for PostgresOutbox {
    fn source(&self) -> Arc<dyn Source> {
        self.source.clone()
    }

    fn admin(&self) -> Arc<dyn Admin> {
        self.operator.clone()
    }

    async fn another(&self) -> Arc<dyn Source> {
        self.another.clone()
    }

    async fn insert(&self, rows: &[NewRow]) -> Vec<Inserted> {
        let mut transaction = Transaction::begin(&self.database).await;
        let mut inserted = Vec::new();
        for row in rows {
            inserted.push(transaction.insert(row).await);
        }
        Box::new(transaction).commit().await;
        inserted
    }

    async fn begin(&self) -> Option<Box<dyn OpenTransaction>> {
        Some(Box::new(Transaction::begin(&self.database).await))
    }

    async fn history(&self) -> Vec<Kept> {
        sqlx::query(
            "select seq, id, sink, stream, position, coalesce(convert_to(payload::text, 'UTF8'), payload_bytes)
             from outbox.published order by published_at, seq, sink",
        )
        .fetch_all(&mut self.database.connect().await)
        .await
        .unwrap()
        .iter()
        .map(|row| Kept {
            seq: row.get(0),
            id: row.get(1),
            sink: row.get(2),
            stream: row.get(3),
            position: row.get(4),
            payload: row.get(5),
        })
        .collect()
    }
}

/// A writer, as an application would be one.
struct Transaction(PgConnection);

impl Transaction {
    async fn begin(database: &Database) -> Self {
        let mut connection = database.writer().await;
        sqlx::raw_sql("begin")
            .execute(&mut connection)
            .await
            .unwrap();
        Self(connection)
    }

    async fn end(mut self, word: &'static str) {
        sqlx::raw_sql(word).execute(&mut self.0).await.unwrap();
    }
}

#[async_trait]
impl OpenTransaction for Transaction {
    async fn insert(&mut self, row: &NewRow) -> Inserted {
        let (json, bytes) = match &row.payload {
            Payload::Json(text) => (Some(String::from_utf8(text.to_vec()).unwrap()), None),
            Payload::Bytes(bytes) => (None, Some(bytes.to_vec())),
        };
        let delay = (row.delay > Duration::ZERO).then_some(row.delay.as_secs_f64());
        let row = sqlx::query(
            "insert into outbox.event (kind, ordering_key, payload, payload_bytes, content_type, headers, available_at, id)
             values ($1, $2, $3::json, $4, $5, coalesce($6::jsonb, '{}'),
                     now() + coalesce($7, 0) * interval '1 second', coalesce($8, outbox.uuid_v7()))
             returning seq, id",
        )
        .bind(&row.kind)
        .bind(&row.ordering_key)
        .bind(json)
        .bind(bytes)
        .bind(&row.content_type)
        .bind(&row.headers)
        .bind(delay)
        .bind(row.id)
        .fetch_one(&mut self.0)
        .await
        .unwrap();
        Inserted {
            seq: row.get(0),
            id: row.get(1),
        }
    }

    async fn commit(self: Box<Self>) {
        self.end("commit").await;
    }

    async fn rollback(self: Box<Self>) {
        self.end("rollback").await;
    }
}
