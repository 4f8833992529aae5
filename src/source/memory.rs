//! A source in memory, for tests: the semantics of a database with many writers, without a database.
//!
//! Time is tokio's, so that a test with a paused clock decides when leases end and rows fall due.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Listener, PublishedKeep, SourceError, SourceErrorKind};
use crate::event::Timestamp;
use crate::testing::source::{Inserted, Kept, NewRow};

mod admin;
mod lease;
mod operate;
mod source;
mod store;
mod trail;

use store::Store;

/// An outbox in memory. Clones share it, as processes share a database.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    store: Mutex<Store>,
    /// Counts commits.
    commits: watch::Sender<u64>,
    born: (Timestamp, Instant),
}

impl Memory {
    /// An empty outbox that keeps published events in full. Needs a tokio runtime for its clock only.
    pub fn new(name: &str, shards: u16) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            store: Mutex::new(Store::new(shards)),
            commits: watch::Sender::new(0),
            born: (Timestamp::now(), Instant::now()),
        }))
    }

    /// What is kept of published events from now on.
    pub fn keep(&self, keep: PublishedKeep) {
        self.store().keep = keep;
    }

    /// Inserts rows in one transaction.
    ///
    /// # Errors
    /// What a database would refuse: an empty or overlong key, a known id, a JSON body that is none.
    pub fn insert(&self, rows: &[NewRow]) -> Result<Vec<Inserted>, SourceError> {
        let mut open = self.begin();
        let inserted: Result<_, _> = rows.iter().map(|row| open.insert(row)).collect();
        let inserted = inserted?;
        open.commit();
        Ok(inserted)
    }

    /// Opens a transaction. Dropping it rolls back.
    pub fn begin(&self) -> Tx {
        let mut store = self.store();
        store.last_tx += 1;
        let id = store.last_tx;
        store.open.insert(id, Vec::new());
        Tx {
            memory: self.clone(),
            id,
        }
    }

    /// The history of published events.
    pub fn history(&self) -> Vec<Kept> {
        self.store()
            .published
            .iter()
            .map(|kept| kept.kept.clone())
            .collect()
    }

    /// Pending rows, due or not.
    pub fn pending(&self) -> usize {
        self.store().rows.len()
    }

    /// As a restore would do: the history of the database is another one from now on.
    pub fn change_incarnation(&self) {
        self.store().incarnation += 1;
    }

    /// The present by this source's clock.
    pub fn now(&self) -> Timestamp {
        let (at, since) = self.0.born;
        Timestamp(at.0 + since.elapsed().as_micros() as i64)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.0.commits.send_modify(|commits| *commits += 1);
    }
}

/// A writer's transaction: its rows have their seqs at once and are seen from the commit on.
#[derive(Debug)]
pub struct Tx {
    memory: Memory,
    id: u64,
}

impl Tx {
    /// Inserts a row.
    ///
    /// # Errors
    /// What a database would refuse: an empty or overlong key, a known id, a JSON body that is none.
    pub fn insert(&mut self, row: &NewRow) -> Result<Inserted, SourceError> {
        let now = self.memory.now();
        let mut store = self.memory.store();
        let stored = store.stored(row, now)?;
        let inserted = Inserted {
            seq: stored.seq,
            id: stored.id,
        };
        store.open.entry(self.id).or_default().push(stored);
        Ok(inserted)
    }

    /// Shows the rows.
    pub fn commit(self) {
        {
            let mut store = self.memory.store();
            let rows = store.open.remove(&self.id).unwrap_or_default();
            for row in rows {
                store.show(row);
            }
        }
        self.memory.notify();
    }

    /// Forgets the rows; their seqs stay taken.
    pub fn rollback(self) {}
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.memory.store().open.remove(&self.id);
    }
}

struct Commits {
    commits: watch::Receiver<u64>,
}

#[async_trait]
impl Listener for Commits {
    async fn wait(&mut self) -> Result<(), SourceError> {
        self.commits.changed().await.map_err(|_| {
            SourceError::new(SourceErrorKind::Unavailable, "the outbox in memory is gone")
        })
    }

    async fn probe(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}
