//! SQLite 3.35 or newer, in WAL mode, one file on a local disk.
//!
//! The relay brings its own SQLite; 3.35 is what writers need. SQLite has one writer at a time and a seq is
//! taken under the write lock, so the order of commits is the order of seqs and there are no gaps to look
//! into. A file lock beside the database decides which process is active; the others stand by.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{PublishedKeep, SourceError, SourceErrorKind};
use connection::{Role, Slot};
use lock::Lock;

mod admin;
mod connection;
mod decode;
mod error;
mod keep;
mod lease;
mod lock;
mod operate;
mod read;
mod schema;
mod settle;
mod source;
mod suspects;
mod trail;
mod walk;
mod watch_file;

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

/// An outbox in an SQLite file.
///
/// Nothing here needs a cluster of anything: several processes may open the same file, and the operating
/// system's lock on `<path>.outboxd-lock` lets one of them own all shards until it releases them, ends or
/// dies. The database must not lie on a network file system, where such locks, and SQLite's own, are not
/// to be trusted.
#[derive(Debug)]
pub struct Sqlite {
    options: Options,
    writer: Arc<Slot>,
    reader: Arc<Slot>,
    lock: Lock,
    /// Counts this source's own commits that a listener has to hear of.
    commits: watch::Sender<u64>,
}

impl Sqlite {
    /// Prepares a source; opens nothing.
    ///
    /// # Errors
    /// [`SourceErrorKind::Unusable`] for options that can never work: a path that names no file, no shards.
    pub fn new(options: Options) -> Result<Self, SourceError> {
        let unusable = |words: &str| {
            let words = format!("database {}: {words}", options.name);
            Err(SourceError::new(SourceErrorKind::Unusable, words))
        };
        let path = options.path.as_os_str().as_encoded_bytes();
        if path.is_empty() || path.starts_with(b":memory:") || path.starts_with(b"file:") {
            return unusable("give the path of a database file; a database in memory has no relay");
        }
        if options.shards == 0 {
            return unusable("at least one shard is needed");
        }
        let slot = |role| Arc::new(Slot::new(&options.path, role, options.statement_timeout));
        Ok(Self {
            writer: slot(Role::Writer),
            reader: slot(Role::Reader),
            lock: Lock::new(&options.path),
            commits: watch::Sender::new(0),
            options,
        })
    }

    fn path(&self) -> &Path {
        &self.options.path
    }

    /// Lets this process's own listeners hear of a commit that they cannot see as another's.
    fn notify(&self) {
        self.commits.send_modify(|commits| *commits += 1);
    }
}

/// A JSON array for `json_each`.
fn json<T: serde::Serialize>(value: T) -> String {
    // Numbers, strings and arrays of them always have a JSON form.
    serde_json::to_string(&value).unwrap_or_else(|_| "[]".to_owned())
}
