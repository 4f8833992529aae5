//! From the driver's errors to what the caller can do.

use crate::source::{SourceError, SourceErrorKind};

/// A failed step of a call, not yet in words: either the driver's error, or one of ours.
#[derive(Debug)]
pub(super) enum Failure {
    Driver(sqlx::Error),
    Ours(SourceError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::Ours(error)
    }
}

impl Failure {
    /// The error of a call that was about `what`.
    pub(super) fn about(self, what: &str) -> SourceError {
        match self {
            Self::Ours(error) => error,
            Self::Driver(error) => {
                let words = format!("{what}: {}{}", plain(&error), advice(&error));
                SourceError::new(kind(&error), words).caused_by(error)
            }
        }
    }

    /// Is the database busy with somebody else?
    pub(super) fn busy(&self) -> bool {
        matches!(self, Self::Driver(error) if matches!(primary(error), Some(BUSY | LOCKED)))
    }
}

const BUSY: i64 = 5;
const LOCKED: i64 = 6;
const READ_ONLY: i64 = 8;
const INTERRUPT: i64 = 9;
const IO: i64 = 10;
const CORRUPT: i64 = 11;
const FULL: i64 = 13;
const CANNOT_OPEN: i64 = 14;
const NOT_A_DATABASE: i64 = 26;

/// SQLite's primary result code (<https://www.sqlite.org/rescode.html>): the low byte of the extended one.
fn primary(error: &sqlx::Error) -> Option<i64> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i64>().ok().map(|code| code & 0xff)
}

fn plain(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(database) => database.message().to_owned(),
        None => error.to_string(),
    }
}

fn missing_table(error: &sqlx::Error) -> bool {
    let message = plain(error);
    message.contains("no such table: outbox_") || message.contains("no such column")
}

fn kind(error: &sqlx::Error) -> SourceErrorKind {
    match (primary(error), error) {
        (Some(CORRUPT | NOT_A_DATABASE), _) => SourceErrorKind::Unusable,
        (Some(READ_ONLY), _) => SourceErrorKind::ReadOnly,
        // A full disk may take a small write and refuse the next: leases could be taken and nothing settled.
        (Some(BUSY | LOCKED | INTERRUPT | IO | FULL | CANNOT_OPEN), _) => {
            SourceErrorKind::Unavailable
        }
        (Some(_), _) if missing_table(error) => SourceErrorKind::Unusable,
        (Some(_), _) => SourceErrorKind::Refused,
        (None, sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. }) => {
            SourceErrorKind::Refused
        }
        (None, _) => SourceErrorKind::Unavailable,
    }
}

fn advice(error: &sqlx::Error) -> &'static str {
    match primary(error) {
        Some(BUSY | LOCKED) => "; another connection holds the write lock",
        Some(INTERRUPT) => "; it took longer than the statement timeout",
        Some(FULL) => "; free some space on the disk",
        Some(READ_ONLY) => "; the file and its directory must be writable",
        Some(NOT_A_DATABASE) => "; check the path",
        _ if missing_table(error) => "; run `outboxd migrate`",
        _ => "",
    }
}
