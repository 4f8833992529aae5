//! The sections that concern the process as a whole.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{self, Span};
use crate::source::PublishedKeep;

/// `[lease]`: ownership of the outbox among instances.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Lease {
    /// How long ownership lasts without renewal; a killed instance is replaced after this plus 2 s. At
    /// least 3 s. Default: 15 s.
    pub ttl: Span,
    /// Slices of the ordering keys, 1 to 1024; stored in the outbox when it is first migrated. Default: 16.
    #[serde(deserialize_with = "value::number")]
    pub shards: u16,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            ttl: Span::secs(15),
            shards: 16,
        }
    }
}

/// `[retention]`: how long finished events are kept.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// How long published events are kept. Default: 7 days.
    pub published: Span,
    /// What is kept of them: `none`, `receipt` (identity, stream and position) or `full` (can be
    /// replayed). Default: `full`.
    #[serde(deserialize_with = "value::word")]
    pub published_keep: PublishedKeep,
    /// How long discarded events are kept. Default: 90 days.
    pub discarded: Span,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        Self {
            published: Span::secs(7 * DAY),
            published_keep: PublishedKeep::Full,
            discarded: Span::secs(90 * DAY),
        }
    }
}

/// `[http]`: health and metrics.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Address and port of `/livez`, `/readyz` and `/metrics`; port 0 takes a free one and prints it.
    /// Default: no listener.
    #[serde(deserialize_with = "address")]
    pub listen: Option<SocketAddr>,
}

/// `[shutdown]`: the end of the process.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long a shutdown may take: what is in flight gets this long to be answered. Default: 25 s.
    pub grace: Span,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            grace: Span::secs(25),
        }
    }
}

/// `[log]`: log output, on standard error.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `human` or `json` (one object per line). Default: `human`.
    #[serde(deserialize_with = "value::word")]
    pub format: LogFormat,
    /// Level, `error`, `warn`, `info`, `debug` or `trace`, with exceptions by target: `info,sqlx=debug`. The
    /// variable RUST_LOG goes before it. Default: `info`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Human,
            level: "info".into(),
        }
    }
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

fn address<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<SocketAddr>, D::Error> {
    let text: String = value::word(d)?;
    text.parse().map(Some).map_err(|_| {
        serde::de::Error::custom("expected an address and a port, such as \"127.0.0.1:8480\"")
    })
}
