//! The file lock that decides who is active.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::connection::FileId;
use crate::source::{SourceError, SourceErrorKind};

/// The lock beside a database.
#[derive(Debug)]
pub(super) struct Lock {
    database: PathBuf,
    pub(super) held: tokio::sync::Mutex<Option<Held>>,
}

/// The lock, while it is held. Dropping it releases it, and so does the end of the process.
#[derive(Debug)]
pub(super) struct Held {
    file: File,
    path: PathBuf,
    /// Which instance took it.
    pub(super) instance: Uuid,
    /// The leases that were written under it and not given back.
    pub(super) tokens: HashMap<u16, i64>,
}

impl Held {
    /// Does everybody else still see this lock? Not when the lock file was removed or replaced.
    pub(super) fn stands(&self) -> bool {
        let ours = FileId::of_open(&self.file);
        ours.is_some() && ours == FileId::of(&self.path)
    }
}

impl Lock {
    pub(super) fn new(database: &Path) -> Self {
        Self {
            database: database.to_owned(),
            held: tokio::sync::Mutex::new(None),
        }
    }

    /// Takes the lock if it is free. `None`: another process, or another source in this one, has it.
    pub(super) fn try_take(&self, instance: Uuid) -> Result<Option<Held>, SourceError> {
        let path = self.path()?;
        let failed = |error: std::io::Error| {
            let words = format!(
                "lock file {}: {error}; the relay must be able to write beside the database",
                path.display()
            );
            SourceError::new(SourceErrorKind::Unavailable, words).caused_by(error)
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let held = Held {
            file,
            path: path.clone(),
            instance,
            tokens: HashMap::new(),
        };
        // Between opening and locking, the file may have been replaced: then it is not the lock any more.
        Ok(held.stands().then_some(held))
    }

    /// The lock file's path, the same whichever link leads to the database.
    fn path(&self) -> Result<PathBuf, SourceError> {
        let database = self.database.canonicalize().map_err(|error| {
            let words = format!("database {}: {error}", self.database.display());
            SourceError::new(SourceErrorKind::Unavailable, words).caused_by(error)
        })?;
        let mut path = OsString::from(database);
        path.push(".outboxd-lock");
        Ok(PathBuf::from(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_within_a_process_and_through_links() {
        let directory = tempfile::tempdir().expect("a directory");
        let database = directory.path().join("a.db");
        std::fs::write(&database, b"").expect("a file");
        let first = Lock::new(&database);
        let held = first.try_take(Uuid::nil()).expect("take").expect("free");
        assert!(held.stands());
        assert!(
            Lock::new(&database)
                .try_take(Uuid::nil())
                .expect("take")
                .is_none()
        );
        #[cfg(unix)]
        {
            let link = directory.path().join("b.db");
            std::os::unix::fs::symlink(&database, &link).expect("a link");
            assert!(
                Lock::new(&link)
                    .try_take(Uuid::nil())
                    .expect("take")
                    .is_none()
            );
        }
        drop(held);
        assert!(first.try_take(Uuid::nil()).expect("take").is_some());
    }

    #[cfg(unix)]
    #[test]
    fn a_removed_lock_file_is_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let database = directory.path().join("a.db");
        std::fs::write(&database, b"").expect("a file");
        let lock = Lock::new(&database);
        let held = lock.try_take(Uuid::nil()).expect("take").expect("free");
        let path = directory.path().join("a.db.outboxd-lock");
        std::fs::remove_file(&path).expect("removed");
        assert!(!held.stands());
        let successor = lock.try_take(Uuid::nil()).expect("take").expect("free");
        assert!(!held.stands() && successor.stands());
    }
}
