//! PostgreSQL 15 or newer.
//!
//! - `connect`, `pool`: reaching the server; each call on a connection of its own, with a time limit;
//! - `statements`: the SQL texts under `sql/`, filled with the schema's name once;
//! - `open`, `read`, `sweep`, `settle`, `lease`, `keep`, `listen`: the parts of [`Source`];
//! - `migrate`, `admin`, `operate`, `trail`: the parts of [`Admin`].

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use self::dial::Dial;
use super::admin::{
    Admin, Discarded, DiscardedFilter, Migrated, NewEvent, Operator, Overtakes, PendingMigration,
    Roles, Status,
};
use super::trail::{Hand, Known, Take, Tally, Window};
use super::waiting::{KeyEvent, KeyName, Pick, Waiting};
use super::{
    Backlog, Begun, Commands, Due, Heartbeat, InHand, LeaseView, Listener, Members, Opened,
    Outcome, Pause, PublishedKeep, ReadBounds, Renewed, Retention, Row, Source, SourceError,
    SourceErrorKind, Suspects, Sweep, SweepMark, Target, Writers,
};
use crate::event::Timestamp;
use crate::lease::Lease;
use connect::Purpose;
use pool::Pool;
use statements::{Schema, Statements};

mod admin;
mod connect;
mod dial;
mod error;
mod keep;
mod lease;
mod listen;
mod migrate;
mod open;
mod operate;
mod pool;
mod read;
mod settle;
mod statements;
mod suspects;
mod sweep;
mod tls;
mod trail;
mod value;

/// What stands between the relay and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooler {
    /// Nothing, or a pooler in session mode.
    #[default]
    None,
    /// A pooler in transaction mode (PgBouncer): no LISTEN, no session state.
    Transaction,
}

/// Encryption of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tls {
    /// Plain text.
    Disable,
    /// Encrypted if the server offers it.
    #[default]
    Prefer,
    /// Encrypted or no connection; the certificate is not checked.
    Require,
    /// Encrypted, certificate signed by a known authority.
    VerifyCa,
    /// Encrypted, certificate and host name checked.
    VerifyFull,
}

/// How to reach and use a PostgreSQL outbox.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name from configuration.
    pub name: String,
    /// Connection URL; the fields below override its parts.
    pub url: Option<SecretString>,
    /// File that holds the URL, read again at each connect.
    pub url_file: Option<PathBuf>,
    /// Host name, address or socket directory.
    pub host: Option<String>,
    /// Port.
    pub port: Option<u16>,
    /// Role.
    pub user: Option<String>,
    /// Password.
    pub password: Option<SecretString>,
    /// File that holds the password, read again at each connect.
    pub password_file: Option<PathBuf>,
    /// Database.
    pub dbname: Option<String>,
    /// Encryption; `None`: what the URL says, else [`Tls::VerifyFull`], or [`Tls::Prefer`] for the loopback and
    /// for Unix sockets without any of the files below.
    pub tls: Option<Tls>,
    /// Certificate authority to trust beside the system's, PEM, read again at each connect.
    pub ca_file: Option<PathBuf>,
    /// Certificate to show to the server, PEM, read again at each connect.
    pub client_cert_file: Option<PathBuf>,
    /// Its private key, PEM, read again at each connect.
    pub client_key_file: Option<PathBuf>,
    /// Schema of the outbox.
    pub schema: String,
    /// Pooler.
    pub pooler: Pooler,
    /// Wake by LISTEN (`false`: polling only).
    pub listen: bool,
    /// What is kept of published events.
    pub keep: PublishedKeep,
    /// Number of shards to create when the outbox is migrated for the first time.
    pub shards: u16,
    /// Connections for statements; LISTEN has one of its own beside them.
    pub max_connections: u32,
    /// Limit for one statement.
    pub statement_timeout: Duration,
}

impl Options {
    /// The outbox at this URL (`None`: the fields say where), everything else as configuration leaves it.
    pub fn new(name: impl Into<String>, url: Option<SecretString>) -> Self {
        Self {
            name: name.into(),
            url,
            url_file: None,
            host: None,
            port: None,
            user: None,
            password: None,
            password_file: None,
            dbname: None,
            tls: None,
            ca_file: None,
            client_cert_file: None,
            client_key_file: None,
            schema: "outbox".to_owned(),
            pooler: Pooler::None,
            listen: true,
            keep: PublishedKeep::default(),
            shards: 16,
            max_connections: 8,
            statement_timeout: Duration::from_secs(10),
        }
    }
}

/// An outbox in PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    options: Arc<Options>,
    schema: Schema,
    sql: Statements,
    dial: Arc<Dial>,
    /// The relay's statements.
    relay: Pool,
    /// Operators' and writers' statements, one at a time.
    admin: Pool,
}

impl Postgres {
    /// Checks the options. Connects to nothing: that happens with the first call, and again after each
    /// failure.
    ///
    /// # Errors
    /// [`SourceErrorKind::Unusable`]: the options can never work. The words name the database and the
    /// option, never a secret.
    pub fn new(options: Options) -> Result<Self, SourceError> {
        connect::check(&options)?;
        let schema = Schema::new(&options.schema).map_err(|reason| {
            SourceError::new(
                SourceErrorKind::Unusable,
                format!("database {}: the schema's name {reason}", options.name),
            )
        })?;
        let options = Arc::new(options);
        let dial = Arc::<Dial>::default();
        Ok(Self {
            sql: Statements::new(&schema),
            schema,
            relay: Pool::new(
                Arc::clone(&options),
                Purpose::Relay,
                options.max_connections,
                Arc::clone(&dial),
            ),
            admin: Pool::new(Arc::clone(&options), Purpose::Admin, 1, Arc::default()),
            dial,
            options,
        })
    }

    fn unusable(&self, words: String) -> SourceError {
        SourceError::new(
            SourceErrorKind::Unusable,
            format!("database {}: {words}", self.options.name),
        )
    }

    /// An answer that does not have the shape it was asked for.
    fn refused(&self, what: &str, cause: sqlx::Error) -> SourceError {
        error::failure(&self.options.name, what, cause).error
    }

    fn column<'r, T>(&self, what: &str, row: &'r PgRow, place: usize) -> Result<T, SourceError>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        row.try_get(place)
            .map_err(|cause| self.refused(what, cause))
    }

    /// A column of the only row.
    fn only<'r, T>(&self, what: &str, rows: &'r [PgRow], place: usize) -> Result<T, SourceError>
    where
        T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        match rows.first() {
            Some(row) => self.column(what, row, place),
            None => Err(self.refused(what, sqlx::Error::RowNotFound)),
        }
    }
}

#[async_trait]
impl Source for Postgres {
    fn name(&self) -> &str {
        &self.options.name
    }

    async fn open(&self) -> Result<Opened, SourceError> {
        self.open_outbox().await
    }

    async fn read(
        &self,
        sink: &str,
        after: i64,
        bounds: ReadBounds,
        bare_keys: &[Arc<str>],
    ) -> Result<Vec<Row>, SourceError> {
        self.read_forward(sink, after, bounds, bare_keys).await
    }

    async fn read_keys(
        &self,
        sink: &str,
        keys: &[(Arc<str>, i64)],
        per_key: u32,
    ) -> Result<Vec<Row>, SourceError> {
        self.read_runs(sink, keys, per_key).await
    }

    async fn read_seqs(&self, sink: &str, seqs: &[i64]) -> Result<Vec<Row>, SourceError> {
        self.read_named(sink, seqs).await
    }

    async fn probe(
        &self,
        ranges: &[RangeInclusive<i64>],
        limit: u32,
    ) -> Result<Vec<(i64, Option<Arc<str>>)>, SourceError> {
        self.probe_ranges(ranges, limit).await
    }

    async fn writers(&self) -> Result<Option<Writers>, SourceError> {
        self.open_writers().await.map(Some)
    }

    async fn heads(
        &self,
        sink: &str,
        mark: Option<&SweepMark>,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        self.sweep(sink, mark, limit).await
    }

    async fn due_after(
        &self,
        sink: &str,
        due: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>, SourceError> {
        self.due_rows(sink, due, limit).await
    }

    async fn settle(&self, outcomes: &[Outcome], durable: bool) -> Result<Vec<bool>, SourceError> {
        self.settle_batch(outcomes, durable).await
    }

    async fn delete_done(&self, required: &[Arc<str>], limit: u32) -> Result<u64, SourceError> {
        self.remove_done(required, limit).await
    }

    async fn begun(&self, after: i64, limit: u32) -> Result<Begun, SourceError> {
        self.read_begun(after, limit).await
    }

    async fn commands(&self, after: Option<i64>) -> Result<Commands, SourceError> {
        self.read_commands(after).await
    }

    async fn attend(&self, instance: Uuid, ttl: Duration, idle: bool) -> Result<(), SourceError> {
        self.write_attendance(instance, ttl, idle).await
    }

    async fn members(&self, instance: Uuid) -> Result<Members, SourceError> {
        self.read_members(instance).await
    }

    async fn acquire(
        &self,
        instance: Uuid,
        ttl: Duration,
        most: u16,
    ) -> Result<Vec<Lease>, SourceError> {
        self.acquire_leases(instance, ttl, most).await
    }

    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Result<Renewed, SourceError> {
        self.renew_leases(leases, ttl).await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), SourceError> {
        self.release_leases(leases).await
    }

    async fn bury(&self, instance: Uuid) -> Result<(), SourceError> {
        self.bury_leases(instance).await
    }

    async fn suspects(&self, leases: &[Lease]) -> Result<Vec<Suspects>, SourceError> {
        self.read_suspects(leases).await
    }

    async fn note(&self, in_hand: &[InHand], alone: bool) -> Result<(), SourceError> {
        self.note_in_hand(in_hand, alone).await
    }

    async fn acquit(&self, leases: &[Lease]) -> Result<(), SourceError> {
        self.acquit_leases(leases).await
    }

    async fn leases(&self) -> Result<Vec<LeaseView>, SourceError> {
        self.list_leases().await
    }

    async fn heartbeat(&self, beat: &Heartbeat) -> Result<(), SourceError> {
        self.write_heartbeat(beat).await
    }

    async fn goodbye(&self, instance: Uuid) -> Result<(), SourceError> {
        self.remove_instance(instance).await
    }

    async fn backlog(&self) -> Result<Backlog, SourceError> {
        self.sample_backlog().await
    }

    async fn purge(&self, retention: &Retention, limit: u32) -> Result<u64, SourceError> {
        self.purge_past(retention, limit).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listener>>, SourceError> {
        self.open_listener().await
    }

    async fn set_wake_mark(&self, span: Duration) -> Result<(), SourceError> {
        self.write_wake_mark(span).await
    }

    async fn wake_instances(&self) -> Result<(), SourceError> {
        self.notify_instances().await
    }

    async fn close(&self) {
        self.relay.close().await;
        self.admin.close().await;
    }
}

#[async_trait]
impl Admin for Postgres {
    async fn migrate(&self) -> Result<Migrated, SourceError> {
        self.migrate_schema().await
    }

    async fn pending_sql(&self) -> Result<Vec<PendingMigration>, SourceError> {
        self.pending_migrations().await
    }

    fn grants(&self, roles: &Roles) -> Option<String> {
        Some(self.all_grants(roles))
    }

    async fn publish(&self, events: &[NewEvent]) -> Result<Vec<Uuid>, SourceError> {
        self.insert_events(events).await
    }

    async fn status(&self) -> Result<Status, SourceError> {
        self.read_status().await
    }

    async fn discarded(
        &self,
        filter: &DiscardedFilter,
        limit: u32,
    ) -> Result<Vec<Discarded>, SourceError> {
        self.list_discarded(filter, limit).await
    }

    async fn requeue(&self, filter: &DiscardedFilter, by: &Operator) -> Result<u64, SourceError> {
        self.requeue_discarded(filter, by).await
    }

    async fn drop_discarded(
        &self,
        filter: &DiscardedFilter,
        by: &Operator,
    ) -> Result<u64, SourceError> {
        self.delete_discarded(filter, by).await
    }

    async fn overtakes(&self, filter: &DiscardedFilter) -> Result<Overtakes, SourceError> {
        self.look_ahead(filter).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, SourceError> {
        self.list_pauses(&self.admin).await
    }

    async fn pause(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        self.hold(target, by).await
    }

    async fn resume(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        self.let_go(target, by).await
    }

    async fn waiting(&self, sink: Option<&str>, limit: u32) -> Result<Vec<Waiting>, SourceError> {
        self.list_waiting(sink, limit).await
    }

    async fn key_events(
        &self,
        sink: &str,
        key: &KeyName,
        limit: u32,
    ) -> Result<Vec<KeyEvent>, SourceError> {
        self.read_key(sink, key, limit).await
    }

    async fn hurry(&self, picks: &[Pick], by: &Operator) -> Result<u64, SourceError> {
        self.retry_now(picks, by).await
    }

    async fn skip(&self, picks: &[Pick], by: &Operator) -> Result<u64, SourceError> {
        self.mark_skipped(picks, by).await
    }

    async fn pending_kinds(&self, limit: u32) -> Result<Vec<String>, SourceError> {
        self.sample_kinds(limit).await
    }

    async fn trail(&self, sink: &str, window: Window, take: Take<'_>) -> Result<(), SourceError> {
        self.walk_trail(sink, window, take).await
    }

    async fn tally(&self, sink: &str, window: Window) -> Result<Tally, SourceError> {
        self.count_trail(sink, window).await
    }

    async fn trace(
        &self,
        events: &[(Option<i64>, Uuid)],
    ) -> Result<Vec<Option<Known>>, SourceError> {
        self.look_up(events).await
    }

    async fn hands(&self, sink: &str, seqs: &[i64]) -> Result<Vec<(i64, Hand)>, SourceError> {
        self.list_hands(sink, seqs).await
    }
}
