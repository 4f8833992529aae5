//! PostgreSQL 15 or newer.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::PublishedKeep;

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
    /// Encryption; `None` leaves what the URL says.
    pub tls: Option<Tls>,
    /// Certificate authority, PEM.
    pub ca_file: Option<PathBuf>,
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
