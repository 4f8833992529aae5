//! Connections: one that writes, one that reads, each used by one call at a time and thrown away after any
//! trouble.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::{Mutex, MutexGuard};

use super::error::Failure;
use crate::source::{SourceError, SourceErrorKind};

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Writes; every transaction begins with the write lock, so that a read inside is never stale.
    Writer,
    /// Reads only.
    Reader,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Slot {
    path: PathBuf,
    role: Role,
    limit: Duration,
    live: Mutex<Option<Live>>,
    /// Numbers connections, so that facts about one are not taken for facts about the next.
    opened: AtomicU64,
}

#[derive(Debug)]
struct Live {
    connection: SqliteConnection,
    /// The running call ends here: milliseconds since `born`. Read by SQLite between instructions.
    deadline_ms: Arc<AtomicU64>,
    born: Instant,
    file: FileId,
    number: u64,
    durable: bool,
}

impl Slot {
    pub(super) fn new(path: &Path, role: Role, limit: Duration) -> Self {
        Self {
            path: path.to_owned(),
            role,
            limit,
            live: Mutex::new(None),
            opened: AtomicU64::new(0),
        }
    }

    /// Runs one call within the time limit. The call takes the connection itself, and gives it back when all
    /// went well; otherwise it is closed, and SQLite rolls back what was open.
    pub(super) async fn limited<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, SourceError> {
        match tokio::time::timeout(self.limit, call).await {
            Ok(result) => result.map_err(|failure| failure.about(&self.about(what))),
            Err(_) => Err(SourceError::new(
                SourceErrorKind::Unavailable,
                format!("{}: no answer within {:?}", self.about(what), self.limit),
            )),
        }
    }

    fn about(&self, what: &str) -> String {
        format!("database {}: {what}", self.path.display())
    }

    /// The connection, opened if need be, for one call.
    pub(super) async fn take(&self) -> Result<Taken<'_>, Failure> {
        let guard = self.live.lock().await;
        self.taken(guard).await
    }

    async fn taken<'a>(
        &'a self,
        mut guard: MutexGuard<'a, Option<Live>>,
    ) -> Result<Taken<'a>, Failure> {
        let file = FileId::of(&self.path);
        // A connection to a file that is no longer at its path would read and write a ghost.
        let same = guard.take().filter(|live| Some(live.file) == file);
        let live = match same {
            Some(live) => live,
            None => self.connect(file).await?,
        };
        live.deadline_ms
            .store(millis(live.born.elapsed() + self.limit), Ordering::Relaxed);
        Ok(Taken { guard, live })
    }

    async fn connect(&self, file: Option<FileId>) -> Result<Live, Failure> {
        let Some(file) = file else {
            return Err(absent(&self.path).into());
        };
        let mut options = SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(false)
            .busy_timeout(self.limit)
            .disable_statement_logging();
        options = match self.role {
            Role::Writer => options.pragma("synchronous", "NORMAL"),
            Role::Reader => options.pragma("query_only", "ON").row_buffer_size(512),
        };
        let mut connection = options.connect().await?;
        let (born, deadline_ms) = (Instant::now(), Arc::new(AtomicU64::new(u64::MAX)));
        let deadline = deadline_ms.clone();
        connection
            .lock_handle()
            .await?
            .set_progress_handler(PROGRESS_EVERY, move || {
                millis(born.elapsed()) < deadline.load(Ordering::Relaxed)
            });
        Ok(Live {
            connection,
            deadline_ms,
            born,
            file,
            number: self.opened.fetch_add(1, Ordering::Relaxed) + 1,
            durable: false,
        })
    }

    /// The number of the connection and its `data_version`, which changes with every commit of any other
    /// connection. `None` while it is at work: then nobody knows. Abandoning this does not disturb the
    /// connection.
    pub(super) async fn data_version(self: &Arc<Self>) -> Result<Option<(u64, i64)>, SourceError> {
        let slot = self.clone();
        let task = tokio::spawn(async move {
            let ask = async {
                let Ok(guard) = slot.live.try_lock() else {
                    return Ok(None);
                };
                let mut taken = slot.taken(guard).await?;
                let query = sqlx::query_scalar("PRAGMA data_version");
                let version: i64 = query.fetch_one(taken.sql()).await?;
                let number = taken.live.number;
                taken.give_back();
                Ok(Some((number, version)))
            };
            slot.limited("ask for its version", ask).await
        });
        task.await.unwrap_or_else(|_| {
            let words = self.about("ask for its version: the runtime is going down");
            Err(SourceError::new(SourceErrorKind::Unavailable, words))
        })
    }

    /// Closes the connection.
    pub(super) async fn close(&self) {
        let live = self.live.lock().await.take();
        if let Some(live) = live {
            // Whatever it answers: the connection is gone afterwards.
            let _ = tokio::time::timeout(self.limit, live.connection.close()).await;
        }
    }
}

/// Instructions of SQLite's machine between two looks at the clock: some tenths of a millisecond.
const PROGRESS_EVERY: i32 = 10_000;

fn millis(span: Duration) -> u64 {
    span.as_millis() as u64
}

pub(super) fn absent(path: &Path) -> SourceError {
    SourceError::new(
        SourceErrorKind::Unusable,
        format!(
            "database {}: there is no such file; check the path, or run `outboxd migrate` to make it",
            path.display()
        ),
    )
}

/// A connection in use by one call. Dropped without [`Taken::give_back`], it is closed.
pub(super) struct Taken<'a> {
    guard: MutexGuard<'a, Option<Live>>,
    live: Live,
}

impl Taken<'_> {
    /// For one statement.
    pub(super) fn sql(&mut self) -> &mut SqliteConnection {
        &mut self.live.connection
    }

    /// Begins a transaction with the write lock. `durable`: the commit waits for the disk.
    pub(super) async fn begin(&mut self, durable: bool) -> Result<(), Failure> {
        if self.live.durable != durable {
            let level = match durable {
                true => "PRAGMA synchronous = FULL",
                false => "PRAGMA synchronous = NORMAL",
            };
            sqlx::query(level).execute(self.sql()).await?;
            self.live.durable = durable;
        }
        sqlx::query("BEGIN IMMEDIATE").execute(self.sql()).await?;
        Ok(())
    }

    /// Commits.
    pub(super) async fn commit(&mut self) -> Result<(), Failure> {
        sqlx::query("COMMIT").execute(self.sql()).await?;
        Ok(())
    }

    /// The file that the connection is open on.
    pub(super) fn file(&self) -> FileId {
        self.live.file
    }

    /// The call went well: the next one may use the connection.
    pub(super) fn give_back(mut self) {
        *self.guard = Some(self.live);
    }
}

/// Which file a path leads to: another one after it was replaced, by a restore for instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// `None` when there is no file.
    #[cfg(unix)]
    pub(super) fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(path)
            .ok()
            .map(|meta| Self::from_parts(meta.dev(), meta.ino()))
    }

    /// `None` when there is no file. Elsewhere than on Unix all files are taken for the same.
    #[cfg(not(unix))]
    pub(super) fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|_| Self::from_parts(0, 0))
    }

    /// Of an open file.
    #[cfg(unix)]
    pub(super) fn of_open(file: &std::fs::File) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        file.metadata()
            .ok()
            .map(|meta| Self::from_parts(meta.dev(), meta.ino()))
    }

    /// Of an open file.
    #[cfg(not(unix))]
    pub(super) fn of_open(file: &std::fs::File) -> Option<Self> {
        file.metadata().ok().map(|_| Self::from_parts(0, 0))
    }

    fn from_parts(device: u64, inode: u64) -> Self {
        Self { device, inode }
    }
}

impl std::fmt::Display for FileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}.{:x}", self.device, self.inode)
    }
}
