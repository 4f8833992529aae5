//! SQLite outboxes in temporary files, written to by a connection that knows nothing of the relay.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd::event::Payload;
use outboxd::source::admin::Admin;
use outboxd::source::sqlite::{Options, Sqlite};
use outboxd::source::{PublishedKeep, Source};
use outboxd::testing::source::{Bench, Inserted, Kept, NewRow, OpenTransaction, Outbox, SHARDS};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, Row as _};
use tempfile::TempDir;

pub struct SqliteBench;

#[async_trait]
impl Bench for SqliteBench {
    async fn outbox(&self) -> Box<dyn Outbox> {
        Box::new(SqliteOutbox::new().await)
    }
}

pub struct SqliteOutbox {
    directory: TempDir,
    source: Arc<Sqlite>,
}

pub fn options(path: &Path) -> Options {
    Options {
        name: "sqlite".to_owned(),
        path: path.to_owned(),
        keep: PublishedKeep::Full,
        shards: SHARDS,
        statement_timeout: Duration::from_secs(10),
    }
}

impl SqliteOutbox {
    pub async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = Sqlite::new(options(&directory.path().join("app.db"))).unwrap();
        source.migrate().await.unwrap();
        Self {
            directory,
            source: Arc::new(source),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("app.db")
    }

    /// A connection as any application has it.
    pub async fn application(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path());
        SqliteConnection::connect_with(&options).await.unwrap()
    }
}

#[async_trait]
impl Outbox for SqliteOutbox {
    fn source(&self) -> Arc<dyn Source> {
        self.source.clone()
    }

    fn admin(&self) -> Arc<dyn Admin> {
        self.source.clone()
    }

    async fn another(&self) -> Arc<dyn Source> {
        Arc::new(Sqlite::new(options(&self.path())).unwrap())
    }

    async fn insert(&self, rows: &[NewRow]) -> Vec<Inserted> {
        let mut application = self.application().await;
        let mut transaction = application.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let mut inserted = Vec::new();
        for row in rows {
            inserted.push(insert(&mut transaction, row).await);
        }
        transaction.commit().await.unwrap();
        application.close().await.unwrap();
        inserted
    }

    async fn begin(&self) -> Option<Box<dyn OpenTransaction>> {
        None
    }

    async fn history(&self) -> Vec<Kept> {
        let mut application = self.application().await;
        let query = "SELECT seq, id, sink, stream, position, \
                     CAST(coalesce(payload, payload_bytes) AS BLOB) FROM outbox_published";
        let rows = sqlx::query(query)
            .fetch_all(&mut application)
            .await
            .unwrap();
        let kept = rows.iter().map(|row| Kept {
            seq: row.get(0),
            id: row.get::<String, _>(1).parse().unwrap(),
            sink: row.get(2),
            stream: row.get(3),
            position: row.get(4),
            payload: row.get(5),
        });
        kept.collect()
    }

    fn leases_expire(&self) -> bool {
        false
    }
}

/// An INSERT that names only what the row gives, so that the defaults do the rest.
async fn insert(connection: &mut SqliteConnection, row: &NewRow) -> Inserted {
    let (json, bytes) = match &row.payload {
        Payload::Json(text) => (Some(std::str::from_utf8(text).unwrap()), None),
        Payload::Bytes(bytes) => (None, Some(&bytes[..])),
    };
    let mut sql = sqlx::QueryBuilder::<sqlx::Sqlite>::new("INSERT INTO outbox_event (kind");
    let given = [
        ("ordering_key", row.ordering_key.clone()),
        ("content_type", row.content_type.clone()),
        ("headers", row.headers.clone()),
        ("id", row.id.map(|id| id.to_string())),
        ("payload", json.map(str::to_owned)),
    ];
    for (name, _) in given.iter().filter(|(_, value)| value.is_some()) {
        sql.push(", ").push(*name);
    }
    if bytes.is_some() {
        sql.push(", payload_bytes");
    }
    if !row.delay.is_zero() {
        sql.push(", available_at");
    }
    sql.push(") VALUES (").push_bind(row.kind.clone());
    for (_, value) in given.into_iter().filter(|(_, value)| value.is_some()) {
        sql.push(", ").push_bind(value);
    }
    if let Some(bytes) = bytes {
        sql.push(", ").push_bind(bytes.to_vec());
    }
    if !row.delay.is_zero() {
        let delay = format!("+{} seconds", row.delay.as_secs_f64());
        sql.push(", strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ")
            .push_bind(delay)
            .push(")");
    }
    sql.push(") RETURNING seq, id");
    let row = sql.build().fetch_one(connection).await.unwrap();
    Inserted {
        seq: row.get(0),
        id: row.get::<String, _>(1).parse().unwrap(),
    }
}
