//! The servers and streams that the measurements run on.

use std::sync::Arc;

use async_nats::jetstream::stream::Stream;
use outboxd::relay::{DatabaseOptions, Options, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::Sink;
use outboxd::source::{PublishedKeep, Retention, Source};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::cpu::Watched;
use crate::it::support::{nats, postgres};

/// A PostgreSQL and a nats-server.
pub struct Stage {
    pub postgres: postgres::Server,
    pub nats: nats::Server,
}

/// What PostgreSQL runs with beside the tests' settings: crash safe, and with some memory. It tells where its time
/// goes only while [`Stage::count_statements`] has asked for it.
const SETTINGS: &[(&str, &str)] = &[
    ("full_page_writes", "on"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "4GB"),
    ("shared_preload_libraries", "pg_stat_statements"),
];

/// For the page: what the figures were measured with.
pub const CONDITIONS: &str =
    "shared_buffers 256 MB, max_wal_size 4 GB; JetStream file storage, its default sync interval";

impl Stage {
    pub async fn start(fsync: bool) -> Self {
        let mut settings = SETTINGS.to_vec();
        settings.push(("fsync", if fsync { "on" } else { "off" }));
        let postgres = postgres::Server::start_own(&settings).await;
        postgres
            .execute("create extension pg_stat_statements")
            .await;
        let stage = Self {
            postgres,
            nats: nats::Server::start().await,
        };
        stage.count_statements(false).await;
        stage
    }

    async fn connect(&self) -> PgConnection {
        let url = format!("postgres://postgres@{}/postgres", self.postgres.address());
        PgConnection::connect(&url).await.unwrap()
    }

    /// Counts statements and their time from now on, or no longer.
    pub async fn count_statements(&self, on: bool) {
        let track = if on { "all" } else { "none" };
        let mut connection = self.connect().await;
        for sql in [
            format!("alter system set pg_stat_statements.track = '{track}'"),
            "select pg_reload_conf()".to_owned(),
            "select pg_stat_statements_reset()".to_owned(),
        ] {
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut connection)
                .await
                .unwrap();
        }
    }

    /// The longest statement that contains these words, in milliseconds.
    pub async fn longest(&self, words: &str) -> f64 {
        sqlx::query_scalar(
            "select coalesce(max(max_exec_time), 0) from pg_stat_statements
             where query ilike '%' || $1 || '%' and query not ilike '%pg_stat_statements%'",
        )
        .bind(words)
        .fetch_one(&mut self.connect().await)
        .await
        .unwrap()
    }

    /// Blocks that statements have looked at since [`Self::count_statements`].
    pub async fn blocks(&self) -> f64 {
        sqlx::query_scalar(
            "select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float8 from pg_stat_statements
             where query not ilike '%pg_stat_statements%'",
        )
        .fetch_one(&mut self.connect().await)
        .await
        .unwrap()
    }

    /// The statements that took most of the server's time; begins to count anew.
    pub async fn statements(&self) -> Vec<String> {
        let mut connection = self.connect().await;
        let lines = sqlx::query_scalar(
            "select format('%s ms in %s calls, %s rows, %s blocks: %s', total_exec_time::int, calls, rows,
                      shared_blks_hit + shared_blks_read, left(regexp_replace(query, '\\s+', ' ', 'g'), 150))
               from pg_stat_statements order by total_exec_time desc limit 12",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        sqlx::query("select pg_stat_statements_reset()")
            .execute(&mut connection)
            .await
            .unwrap();
        lines
    }

    /// Where the log of the database's changes stands, in bytes.
    pub async fn wal(&self) -> f64 {
        sqlx::query_scalar("select (pg_current_wal_lsn() - '0/0')::float8")
            .fetch_one(&mut self.connect().await)
            .await
            .unwrap()
    }

    /// `version()` in short.
    pub async fn versions(&self) -> String {
        let postgres: String = sqlx::query_scalar("show server_version")
            .fetch_one(&mut self.connect().await)
            .await
            .unwrap();
        let nats = self.nats.client().await.server_info().version;
        let postgres = postgres.split_whitespace().next().unwrap_or_default();
        format!("PostgreSQL {postgres}, nats-server {nats}")
    }

    /// Drops the databases and the stream of what was measured.
    pub async fn clear(&self) {
        let _ = self.nats.jetstream().await.delete_stream("EVENTS").await;
        let names: Vec<String> =
            sqlx::query_scalar("select datname::text from pg_database where datname ~ '^t[0-9]+$'")
                .fetch_all(&mut self.connect().await)
                .await
                .unwrap();
        for name in names {
            self.postgres
                .execute(&format!("drop database {name} with (force)"))
                .await;
        }
    }

    /// Whose processor time counts; the relay's is this process's unless `relay` names another.
    pub fn watched(&self, relay: Option<u32>) -> Watched {
        Watched {
            relay,
            postgres: self.postgres.id(),
            nats: self.nats.id(),
        }
    }

    /// A new, empty stream in the place of the one before.
    pub async fn stream(&self) -> Stream {
        let jetstream = self.nats.jetstream().await;
        let _ = jetstream.delete_stream("EVENTS").await;
        let config = serde_json::json!({
            "name": "EVENTS", "subjects": ["events.>"], "allow_batched": true, "allow_atomic": true,
        });
        self.nats.create_stream(config).await
    }
}

/// A relay of everything in `source` to `sink`, with the defaults of a configuration file.
pub fn options(source: Arc<dyn Source>, sink: Arc<dyn Sink>, keep: PublishedKeep) -> Options {
    with_sinks(source, vec![SinkOptions::new("events", sink)], keep)
}

/// The same to several sinks.
pub fn with_sinks(
    source: Arc<dyn Source>,
    sinks: Vec<SinkOptions>,
    keep: PublishedKeep,
) -> Options {
    let route = Route {
        name: "all".into(),
        kinds: vec!["*".into()],
        sinks: sinks
            .iter()
            .map(|sink| Arc::from(sink.name.as_str()))
            .collect(),
        retry: Policy::default(),
    };
    let mut options = Options::new(
        vec![DatabaseOptions::new(source)],
        sinks,
        Routes::new(vec![route]),
    );
    options.retention = Retention {
        keep,
        ..Retention::default()
    };
    options
}
