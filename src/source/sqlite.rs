//! SQLite 3.35 or newer, in WAL mode, one file on a local disk.

use std::path::PathBuf;
use std::time::Duration;

use super::PublishedKeep;

/// How to use an SQLite outbox.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name from configuration.
    pub name: String,
    /// The database file. `OPTIONS.path` + `.outboxd-lock` is the lock file beside it.
    pub path: PathBuf,
    /// What is kept of published events.
    pub keep: PublishedKeep,
    /// Number of shards to create when the outbox is migrated for the first time.
    pub shards: u16,
    /// Limit for one statement, waiting for locks included.
    pub statement_timeout: Duration,
}
