//! `[databases.NAME]`: where an outbox is and how it is read.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{self, Secret, Span};
use crate::relay::GapGuard;

/// One database. An SQLite database takes `url` or `url_file`, `poll_max`, `fallback_poll`, `quiet_after`,
/// `sweep_every` and `statement_timeout`; everything else belongs to PostgreSQL.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// `postgres://user@host:5432/dbname` or `sqlite://path` (relative to the working directory). Instead
    /// of it: `url_file`, or `host` and its companions. No default.
    pub url: Option<Secret>,
    /// File that holds the URL, read again at each connect. No default.
    pub url_file: Option<PathBuf>,
    /// Host name, address, or directory of the Unix socket. No default.
    pub host: Option<String>,
    /// TCP port. Default: 5432.
    #[serde(deserialize_with = "value::some_number")]
    pub port: Option<u16>,
    /// Role to log in as. Default: the operating system's user name.
    pub user: Option<String>,
    /// Password. No default.
    pub password: Option<Secret>,
    /// File that holds the password, read again at each connect. No default.
    pub password_file: Option<PathBuf>,
    /// Database to connect to. Default: the role's name.
    pub dbname: Option<String>,
    /// Encryption: `disable`, `prefer` (plain text if the server offers none), `require` (certificate not
    /// checked), `verify-ca` (host name not checked), `verify-full`. Default: what the URL says (`sslmode`),
    /// else `verify-full`, or `prefer` for the loopback.
    #[serde(deserialize_with = "value::some_word")]
    pub tls: Option<Tls>,
    /// Certificate authority to trust beside the system's, a PEM file, read again at each connect. Makes
    /// `verify-full` the default. No default.
    pub ca_file: Option<PathBuf>,
    /// Certificate to show to the server, a PEM file, read again at each connect. Makes `verify-full` the
    /// default. No default.
    pub client_cert_file: Option<PathBuf>,
    /// Private key of that certificate, a PEM file, read again at each connect. No default.
    pub client_key_file: Option<PathBuf>,
    /// Schema that holds the outbox. Default: `outbox`.
    pub schema: String,
    /// `off`: reading goes on past numbers missing in the sequence, a late commit is delivered late.
    /// `hold`: reading waits for transactions that may still show a lower number. Default: `off`.
    #[serde(deserialize_with = "value::word")]
    pub gap_guard: GapGuard,
    /// `auto`: writers wake the relay (LISTEN) while the rate is low. `poll`: no LISTEN, only polling.
    /// Default: `auto`.
    #[serde(deserialize_with = "value::word")]
    pub wake: Wake,
    /// What stands in between: `none`, or `transaction` for a pooler in transaction mode (PgBouncer), which
    /// rules LISTEN out. Default: `none`.
    #[serde(deserialize_with = "value::word")]
    pub pooler: Pooler,
    /// Longest pause between polls while nothing else wakes the reader. Default: 1 s.
    pub poll_max: Span,
    /// Longest pause between polls while writers wake the reader, since a wake-up can be lost. Default: 30 s.
    pub fallback_poll: Span,
    /// After this much silence the leases are released and every statement but LISTEN stops. Default: never.
    pub quiet_after: Option<Span>,
    /// Pause between two sweeps, which compare the table with memory. Default: 60 s.
    pub sweep_every: Span,
    /// Connections for statements; LISTEN has one of its own beside them. Default: 8.
    #[serde(deserialize_with = "value::number")]
    pub max_connections: u32,
    /// Limit for one statement, waiting for locks included. Default: 10 s.
    pub statement_timeout: Span,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: None,
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
            schema: "outbox".into(),
            gap_guard: GapGuard::Off,
            wake: Wake::Auto,
            pooler: Pooler::None,
            poll_max: Span::secs(1),
            fallback_poll: Span::secs(30),
            quiet_after: None,
            sweep_every: Span::secs(60),
            max_connections: 8,
            statement_timeout: Span::secs(10),
        }
    }
}

impl Database {
    /// Does LISTEN wake the reader?
    pub(super) fn listens(&self) -> bool {
        self.wake == Wake::Auto && self.pooler == Pooler::None
    }
}

/// How the relay learns of new events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Wake {
    /// Writers notify while the rate is low; polling otherwise.
    #[default]
    Auto,
    /// Polling only.
    Poll,
}

/// What stands between the relay and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pooler {
    /// Nothing, or a pooler in session mode.
    #[default]
    None,
    /// A pooler in transaction mode: no LISTEN, no session state.
    Transaction,
}

/// Encryption of the connection to PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Tls {
    /// Plain text.
    Disable,
    /// Encrypted if the server offers it.
    Prefer,
    /// Encrypted or no connection; the certificate is not checked.
    Require,
    /// Encrypted, certificate signed by a known authority.
    VerifyCa,
    /// Encrypted, certificate and host name checked.
    VerifyFull,
}
