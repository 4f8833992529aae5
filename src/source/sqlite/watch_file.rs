//! Wake-up without a server: the files of the database tell that somebody committed.
//!
//! A commit in WAL mode writes to the `-wal` file. Looking at size and time of two files costs microseconds
//! and no statement, so an idle database stays idle. For a while after a change SQLite's `data_version` on
//! the writing connection says whether somebody committed: it changes with every commit but that
//! connection's own, so the relay does not wake itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use tokio::sync::watch;

use super::Sqlite;
use super::connection::Slot;
use crate::source::{Listener, SourceError, SourceErrorKind};

/// Pause between two looks after recent activity.
const SHORTEST: Duration = Duration::from_millis(5);

/// Pause between two looks at an idle database.
const LONGEST: Duration = Duration::from_millis(200);

/// So long after a change SQLite itself is asked at each look. The log is written before the disk confirms
/// it, and the commit is visible only then, without a further trace in any file; and two commits within the
/// coarseness of a file's time may look like one.
const UNSETTLED: Duration = Duration::from_secs(30);

/// Size and time of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    database: Option<(u64, SystemTime)>,
    wal: Option<(u64, SystemTime)>,
}

/// Watches the files of one database.
pub(super) struct Watch {
    reader: Arc<Slot>,
    writer: Arc<Slot>,
    database: PathBuf,
    wal: PathBuf,
    /// Commits of this source that its own listeners have to hear of.
    own: watch::Receiver<u64>,
    seen: Look,
    /// The writing connection and its `data_version` when it was last asked.
    version: Option<(u64, i64)>,
    changed: Instant,
}

impl Look {
    fn at(database: &Path, wal: &Path) -> Self {
        let look = |path: &Path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.len(), meta.modified().ok()?))
        };
        Self {
            database: look(database),
            wal: look(wal),
        }
    }
}

impl Sqlite {
    /// Starts watching. The writing connection is open afterwards, so that it can confirm.
    pub(super) async fn watch(&self) -> Result<Watch, SourceError> {
        let open = async {
            self.writer.take().await?.give_back();
            Ok(())
        };
        self.writer.limited("listen", open).await?;
        let database = self.path().canonicalize().map_err(gone(self.path()))?;
        let mut wal = OsString::from(&database);
        wal.push("-wal");
        let wal = PathBuf::from(wal);
        Ok(Watch {
            reader: self.reader.clone(),
            own: self.commits.subscribe(),
            seen: Look::at(&database, &wal),
            version: self.writer.data_version().await?,
            writer: self.writer.clone(),
            changed: Instant::now(),
            database,
            wal,
        })
    }
}

fn gone(path: &Path) -> impl FnOnce(std::io::Error) -> SourceError {
    move |error| {
        let words = format!("database {}: cannot be watched: {error}", path.display());
        SourceError::new(SourceErrorKind::Unavailable, words).caused_by(error)
    }
}

impl Watch {
    /// Has somebody else committed since the last look? Nothing is remembered before the answer is there, so
    /// that an abandoned look is repeated.
    async fn look(&mut self) -> Result<bool, SourceError> {
        let look = Look::at(&self.database, &self.wal);
        if look.database.is_none() {
            let error = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(gone(&self.database)(error));
        }
        let moved = look != self.seen;
        if !moved && self.changed.elapsed() >= UNSETTLED {
            return Ok(false);
        }
        let version = self.writer.data_version().await?;
        let told = match (version, self.version) {
            (Some(now), Some(before)) if now.0 == before.0 => now.1 != before.1,
            // Another connection than last time knows nothing of the time between.
            (Some(_), _) => true,
            // It is at work: better a wake-up too many, and the question is asked again.
            (None, _) => moved,
        };
        if moved || version.is_none() {
            self.changed = Instant::now();
        }
        self.seen = look;
        self.version = version.or(self.version);
        Ok(told)
    }

    fn pause(&self) -> Duration {
        (self.changed.elapsed() / 20).clamp(SHORTEST, LONGEST)
    }
}

#[async_trait]
impl Listener for Watch {
    async fn wait(&mut self) -> Result<(), SourceError> {
        loop {
            if self.own.has_changed().unwrap_or(false) {
                self.own.mark_unchanged();
                return Ok(());
            }
            if self.look().await? {
                return Ok(());
            }
            let pause = tokio::time::sleep(self.pause());
            tokio::select! {
                () = pause => {}
                changed = self.own.changed() => {
                    return changed.map_err(|_| {
                        let words = format!("database {}: its source is gone", self.database.display());
                        SourceError::new(SourceErrorKind::Unavailable, words)
                    });
                }
            }
        }
    }

    async fn probe(&mut self) -> Result<(), SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_scalar(include_str!("sql/version.sql"));
            let _: i64 = query.fetch_one(taken.sql()).await?;
            taken.give_back();
            Ok(())
        };
        self.reader.limited("probe", read).await
    }
}
