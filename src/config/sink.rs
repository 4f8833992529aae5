//! `[sinks.NAME]`: where events go.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{self, Secret, Size, Span};

/// One destination. Which keys it takes depends on `type`; a key of another type is refused.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sink {
    /// `nats`, `file` or `stdout`. Required.
    #[serde(rename = "type", deserialize_with = "value::some_word")]
    pub kind: Option<SinkType>,
    /// nats: server URLs, comma separated, `nats://host:4222` or `tls://host:4222`. No default.
    pub url: Option<Secret>,
    /// nats: user. No default.
    pub user: Option<String>,
    /// nats: password. No default.
    pub password: Option<Secret>,
    /// nats: file that holds the password, read again at each connect. No default.
    pub password_file: Option<PathBuf>,
    /// nats: token, instead of user and password. No default.
    pub token: Option<Secret>,
    /// nats: file that holds the token, read again at each connect. No default.
    pub token_file: Option<PathBuf>,
    /// nats: credentials file (JWT and key), read again at each connect. No default.
    pub creds_file: Option<PathBuf>,
    /// nats: `true`: encrypted, the certificate and its host name checked, or no connection. `false`: plain
    /// text. Default: `true`, or `false` when every server is on the loopback and nothing else asks for
    /// encryption.
    #[serde(deserialize_with = "value::some_boolean")]
    pub tls: Option<bool>,
    /// nats: certificate authority to trust, a PEM file, read again at each connect. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// nats: certificate to show to the server, a PEM file, read again at each connect. No default.
    pub client_cert_file: Option<PathBuf>,
    /// nats: private key of that certificate, a PEM file, read again at each connect. No default.
    pub client_key_file: Option<PathBuf>,
    /// nats: the stream that every acknowledgement must come from. No default.
    pub stream: Option<String>,
    /// nats: `true`: create the stream when it is missing. Default: `false`.
    #[serde(deserialize_with = "value::boolean")]
    pub create_stream: bool,
    /// nats: subject, with `{kind}`, `{source}`, `{ordering_key}`, `{headers.NAME}` filled in. Default:
    /// `events.{kind}`.
    pub subject: String,
    /// nats: how order is kept: `auto` (what the stream allows), `lane` (many events of a key in flight; the stream
    /// needs `allow_batched`, nats-server 2.14), `atomic` (long runs as atomic batches; `allow_atomic`, nats-server
    /// 2.12) or `single` (one event of a key in flight). Default: `auto`.
    #[serde(deserialize_with = "value::word")]
    pub mode: Mode,
    /// file: the file that JSON lines are appended to. No default.
    pub path: Option<PathBuf>,
    /// Limit for one publish; must be smaller than `lease.ttl` less 2 s. Default: 4 s.
    pub publish_timeout: Span,
    /// Events handed over and not yet answered, at most. Default: 4096.
    #[serde(deserialize_with = "value::number")]
    pub max_in_flight: usize,
    /// Their bytes, at most; a larger event goes alone. Default: 32 MiB.
    pub max_in_flight_bytes: Size,
    /// Form of the message: `raw`, the payload as it was written. Default: `raw`.
    #[serde(deserialize_with = "value::word")]
    pub envelope: Envelope,
}

impl Default for Sink {
    fn default() -> Self {
        Self {
            kind: None,
            url: None,
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
            stream: None,
            create_stream: false,
            subject: "events.{kind}".into(),
            mode: Mode::Auto,
            path: None,
            publish_timeout: Span::secs(4),
            max_in_flight: 4_096,
            max_in_flight_bytes: Size::mib(32),
            envelope: Envelope::Raw,
        }
    }
}

/// The types of sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SinkType {
    /// NATS JetStream.
    Nats,
    /// JSON lines into a file.
    File,
    /// JSON lines on standard output.
    Stdout,
}

impl SinkType {
    /// The word in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::File => "file",
            Self::Stdout => "stdout",
        }
    }

    /// Keys that only this type takes.
    pub(super) fn own_keys(self) -> &'static [&'static str] {
        match self {
            Self::Nats => &[
                "url",
                "user",
                "password",
                "password_file",
                "token",
                "token_file",
                "creds_file",
                "tls",
                "ca_file",
                "client_cert_file",
                "client_key_file",
                "stream",
                "create_stream",
                "subject",
                "mode",
                "envelope",
            ],
            Self::File => &["path"],
            Self::Stdout => &[],
        }
    }

    /// The type that takes `key`; `None` for the keys of every sink.
    pub(super) fn owner_of(key: &str) -> Option<Self> {
        [Self::Nats, Self::File, Self::Stdout]
            .into_iter()
            .find(|kind| kind.own_keys().contains(&key))
    }
}

/// The form of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Envelope {
    /// The payload as it was written; what the relay adds goes into headers.
    #[default]
    Raw,
}

/// How order is kept with more than one event in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// What the stream allows.
    #[default]
    Auto,
    /// Ordered lanes: batches that are stored in order and without a hole.
    Lane,
    /// Atomic batches for long runs.
    Atomic,
    /// One event of a key in flight.
    Single,
}
