//! The servers, outboxes and streams that the measurements run on.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use outboxd::relay::{DatabaseOptions, Options, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::Sink;
use outboxd::sink::memory::Memory;
use outboxd::sink::nats::{Mode, Nats};
use outboxd::source::postgres::Postgres;
use outboxd::source::{PublishedKeep, Retention, Source};
use sqlx::Connection;

use crate::cpu::Watched;
use crate::it::support::postgres::Database;
use crate::it::support::{nats, postgres, roles};

/// How far the keys of a backlog spread.
#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// Over so many, at random.
    Over(u32),
    /// All events have the same.
    One,
    /// None has one.
    None,
}

/// A PostgreSQL and a nats-server.
pub struct Stage {
    pub postgres: postgres::Server,
    pub nats: nats::Server,
}

/// What PostgreSQL runs with beside the tests' settings: crash safe, and with some memory.
const SETTINGS: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("full_page_writes", "on"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "4GB"),
];

/// For the page: what the figures were measured with.
pub const CONDITIONS: &str = "fsync on, shared_buffers 256 MB, max_wal_size 4 GB; JetStream file storage, its default sync interval";

/// For a look at where the database's time goes.
const STATISTICS: &[(&str, &str)] = &[
    ("shared_preload_libraries", "pg_stat_statements"),
    ("pg_stat_statements.track", "all"),
    ("track_io_timing", "on"),
];

impl Stage {
    /// With `statistics` on, [`Self::statements`] tells what the server did.
    pub async fn start(statistics: bool) -> Self {
        let mut settings = SETTINGS.to_vec();
        if statistics {
            settings.extend(STATISTICS);
        }
        let postgres = postgres::Server::start_own(&settings).await;
        if statistics {
            postgres
                .execute("create extension pg_stat_statements")
                .await;
        }
        Self {
            postgres,
            nats: nats::Server::start().await,
        }
    }

    /// The statements that took most of the server's time, and begins to count anew.
    pub async fn statements(&self) -> Vec<String> {
        let url = format!("postgres://postgres@{}/postgres", self.postgres.address());
        let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
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

    pub fn watched(&self) -> Watched {
        Watched {
            postgres: self.postgres.id(),
            nats: self.nats.id(),
        }
    }

    /// A new, migrated outbox with `events` of 1 KiB.
    pub async fn outbox(&self, keep: PublishedKeep, events: u32, keys: Keys) -> Outbox {
        let database = self.postgres.database().await;
        roles::migrate(&database).await;
        let outbox = Outbox { database, keep };
        outbox.fill(events, keys).await;
        outbox
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

    /// The sink that fills the stream.
    pub fn sink(&self) -> Arc<dyn Sink> {
        let options = outboxd::sink::nats::Options {
            name: "events".to_owned(),
            url: self.nats.url(),
            user: None,
            password: None,
            password_file: None,
            token: None,
            token_file: None,
            creds_file: None,
            tls: None,
            ca_file: None,
            client_cert_file: None,
            client_key_file: None,
            stream: "EVENTS".to_owned(),
            create_stream: false,
            subject: "events.{kind}".to_owned(),
            mode: Mode::Auto,
            repeats_within: Duration::from_secs(30),
        };
        Arc::new(Nats::new(options).unwrap())
    }
}

/// An outbox in PostgreSQL.
pub struct Outbox {
    pub database: Database,
    keep: PublishedKeep,
}

impl Outbox {
    /// A source on it, with connections of its own.
    pub fn source(&self) -> Arc<Postgres> {
        let options = outboxd::source::postgres::Options {
            keep: self.keep,
            statement_timeout: Duration::from_secs(30),
            ..roles::options(&self.database.url)
        };
        Arc::new(Postgres::new(options).unwrap())
    }

    async fn fill(&self, events: u32, keys: Keys) {
        let key = match keys {
            // A hash of the number: spread at random, the same in every run.
            Keys::Over(keys) => format!("'k' || (hashint4(n) & 2147483647) % {keys}"),
            Keys::One => "'hot'".to_owned(),
            Keys::None => "null".to_owned(),
        };
        self.database
            .execute(&format!(
                "insert into outbox.event (kind, ordering_key, payload, headers)
                   select 'order.changed', {key}, json_build_object('n', n, 'x', repeat('y', 1000)),
                          jsonb_build_object('request_id', 'r-' || n)
                   from generate_series(1, {events}) n"
            ))
            .await;
        for sql in ["vacuum analyze outbox.event", "checkpoint"] {
            self.database.execute_as_superuser(sql).await;
        }
    }

    /// Rows pending.
    pub async fn pending(&self) -> i64 {
        let mut connection = self.database.connect().await;
        sqlx::query_scalar("select count(*) from outbox.event")
            .fetch_one(&mut connection)
            .await
            .unwrap()
    }
}

/// A relay of everything in `source` to `sink`, with the defaults of a configuration file.
pub fn options(source: Arc<dyn Source>, sink: Arc<dyn Sink>, keep: PublishedKeep) -> Options {
    with_sinks(source, vec![SinkOptions::new("events", sink)], keep)
}

/// The same to several sinks in memory.
pub fn options_to(
    source: Arc<dyn Source>,
    sinks: Vec<(&str, Memory)>,
    keep: PublishedKeep,
) -> Options {
    let sinks = sinks
        .into_iter()
        .map(|(name, sink)| SinkOptions::new(name, Arc::new(sink)));
    with_sinks(source, sinks.collect(), keep)
}

fn with_sinks(source: Arc<dyn Source>, sinks: Vec<SinkOptions>, keep: PublishedKeep) -> Options {
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
