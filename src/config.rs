//! Configuration: one TOML file, environment variables over it, checked as a whole before anything starts.
//!
//! The structs in the submodules are the file's format, one per section; each field says what it means,
//! its unit and its default. [`load`] reads them, [`check`] finds what cannot work, [`build`] turns the
//! result into what the relay and the commands take. `config/reference.toml` lists every key, and a test
//! compares it with the code.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod address;
pub mod build;
mod check;
mod database;
mod environment;
mod file;
mod keys;
mod layers;
mod load;
mod route;
mod schema;
mod service;
mod sink;
mod tree;
mod value;

pub use database::{Database, Pooler, Tls, Wake};
pub use keys::known_keys;
pub use load::{DEFAULT_FILE, ENV_PREFIX, Loaded, Place};
pub use route::{Retry, Route, RouteRetry};
pub use schema::schema;
pub use service::{Http, Lease, Log, LogFormat, Retention, Shutdown};
pub use sink::{Envelope, Mode, Sink, SinkType};
pub use value::{List, Secret, Size, Span};

/// The configuration of outboxd, a transactional-outbox relay.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Databases that hold an outbox, by name.
    pub databases: BTreeMap<String, Database>,
    /// Destinations, by name.
    pub sinks: BTreeMap<String, Sink>,
    /// Which kinds go to which sinks, by name.
    pub routes: BTreeMap<String, Route>,
    /// How failures are tried again, unless a route says otherwise.
    pub retry: Retry,
    /// Ownership of the outbox among instances.
    pub lease: Lease,
    /// How long finished events are kept.
    pub retention: Retention,
    /// The HTTP listener.
    pub http: Http,
    /// The end of the process.
    pub shutdown: Shutdown,
    /// Log output.
    pub log: Log,
}

/// Everything that is wrong with a configuration, all at once. Never holds a value of a secret or a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// One sentence each: where, what, what to do.
    pub problems: Vec<String>,
}

impl ConfigError {
    fn one(problem: impl Into<String>) -> Self {
        Self::of(vec![problem.into()])
    }

    /// Each problem is one line, whatever was in the names and words that it repeats.
    fn of(problems: Vec<String>) -> Self {
        let one_line = |problem: String| match problem.contains(char::is_control) {
            true => problem
                .chars()
                .map(|c| match c.is_control() {
                    true => c.escape_default().to_string(),
                    false => c.to_string(),
                })
                .collect(),
            false => problem,
        };
        Self {
            problems: problems.into_iter().map(one_line).collect(),
        }
    }
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("invalid configuration")?;
        match self.problems.as_slice() {
            [one] => write!(f, ": {one}"),
            many => many
                .iter()
                .try_for_each(|problem| write!(f, "\n  - {problem}")),
        }
    }
}

impl std::error::Error for ConfigError {}
