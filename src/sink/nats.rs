//! NATS JetStream.

use std::path::PathBuf;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

/// How order is kept with more than one event in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// What the server and the stream allow.
    #[default]
    Auto,
    /// One event in flight per key.
    Single,
}

/// How to reach and use a JetStream stream.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name from configuration.
    pub name: String,
    /// Server URLs, comma separated, without secrets.
    pub url: String,
    /// User.
    pub user: Option<String>,
    /// Password.
    pub password: Option<SecretString>,
    /// File that holds the password, read again at each connect.
    pub password_file: Option<PathBuf>,
    /// Token.
    pub token: Option<SecretString>,
    /// File that holds the token, read again at each connect.
    pub token_file: Option<PathBuf>,
    /// Credentials file.
    pub creds_file: Option<PathBuf>,
    /// TLS or no connection.
    pub tls: bool,
    /// Certificate authority, PEM.
    pub ca_file: Option<PathBuf>,
    /// The stream every acknowledgement must come from.
    pub stream: String,
    /// Create the stream when it is missing.
    pub create_stream: bool,
    /// Subject template.
    pub subject: String,
    /// How order is kept.
    pub mode: Mode,
}
