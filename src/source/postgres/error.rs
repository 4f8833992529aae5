//! What a failed call means for the caller, by SQLSTATE.

use super::tls;
use crate::source::{SourceError, SourceErrorKind};

/// What to say when something between the relay and the server swaps sessions.
pub(super) const POOLER: &str = "a pooler in transaction mode seems to stand between the relay and the \
     server: set pooler = \"transaction\", or connect directly";

/// An error with what becomes of the connection it happened on.
pub(super) struct Failure {
    pub(super) error: SourceError,
    /// The connection is of no use any more.
    pub(super) broken: bool,
    /// Other idle connections most likely share its fate.
    pub(super) all_broken: bool,
}

/// Sorts an error of `sqlx`. `what` says what was being done, `database` where.
pub(super) fn failure(database: &str, what: &str, error: sqlx::Error) -> Failure {
    let (kind, reason, broken, all_broken) = match &error {
        sqlx::Error::Database(answer) => {
            let code = answer.code().unwrap_or_default().into_owned();
            let (kind, broken, all_broken) = by_code(&code, answer.message());
            let reason = by_hint(&code, answer.message(), answer.table());
            (kind, reason, broken, all_broken)
        }
        _ if let Some(reason) = tls::refusal(&error) => {
            (SourceErrorKind::Unusable, reason, true, false)
        }
        sqlx::Error::Configuration(_) | sqlx::Error::InvalidArgument(_) => {
            let reason = "the connection's settings are invalid".to_owned();
            (SourceErrorKind::Unusable, reason, true, false)
        }
        sqlx::Error::Encode(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => {
            (SourceErrorKind::Refused, error.to_string(), false, false)
        }
        sqlx::Error::Io(cause) => {
            let reason = format!("the connection failed: {cause}");
            (SourceErrorKind::Unavailable, reason, true, true)
        }
        _ => (SourceErrorKind::Unavailable, error.to_string(), true, true),
    };
    let said = SourceError::new(kind, format!("database {database}: {what}: {reason}"));
    let has_all = tls::refusal(&error).is_some();
    Failure {
        // The words about encryption hold the cause's own already.
        error: if has_all { said } else { said.caused_by(error) },
        broken,
        all_broken,
    }
}

/// Kind, whether the connection is lost, and whether the others are too.
fn by_code(code: &str, message: &str) -> (SourceErrorKind, bool, bool) {
    use SourceErrorKind::{ReadOnly, Refused, Unavailable, Unusable};
    match code {
        // A pooler refuses startup options, or another session's prepared statements turn up.
        "08P01" if message.contains("startup parameter") => (Unusable, true, false),
        "26000" | "42P05" => (Unusable, true, false),
        // A lock, a deadlock, a conflict: the connection is sound.
        "55P03" | "40001" | "40P01" => (Unavailable, false, false),
        "57014" => (Unavailable, true, false),
        // The table changed under a prepared statement: a new connection prepares anew.
        "0A000" if message.contains("cached plan") => (Unavailable, true, false),
        // Read-only: a demoted server answers on every connection that was opened to it.
        "25006" => (ReadOnly, true, true),
        "25P02" | "25P03" => (Unavailable, true, false),
        "42P01" | "42703" | "42883" | "42501" | "3F000" | "3D000" => (Unusable, false, false),
        _ => match code.get(..2) {
            Some("28") => (Unusable, true, false),
            Some("08" | "57" | "58") => (Unavailable, true, true),
            Some("53") => (Unavailable, true, false),
            _ => (Refused, false, false),
        },
    }
}

/// The server's word, with what to do about it.
fn by_hint(code: &str, message: &str, table: Option<&str>) -> String {
    let place = table.map(|t| format!(" (table {t})")).unwrap_or_default();
    match code {
        "08P01" if message.contains("startup parameter") => POOLER.to_owned(),
        "26000" | "42P05" => POOLER.to_owned(),
        "42P01" | "42703" | "42883" | "3F000" => {
            format!("{message}{place}: run `outboxd migrate`")
        }
        "42501" => format!(
            "{message}{place}: grant it to the role in use, see `outboxd migrate --print-grants`"
        ),
        "57014" => format!("the statement took too long and was cancelled ({message})"),
        "25006" => format!("the server is read-only ({message})"),
        _ => format!("{message}{place} (SQLSTATE {code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_to_what_the_caller_can_do() {
        use SourceErrorKind::{ReadOnly, Refused, Unavailable, Unusable};
        for (code, kind) in [
            ("25006", ReadOnly),
            ("53100", Unavailable),
            ("08006", Unavailable),
            ("57P01", Unavailable),
            ("57014", Unavailable),
            ("53300", Unavailable),
            ("58030", Unavailable),
            ("40P01", Unavailable),
            ("42P01", Unusable),
            ("42501", Unusable),
            ("28P01", Unusable),
            ("3D000", Unusable),
            ("23514", Refused),
            ("22021", Refused),
            ("", Refused),
        ] {
            assert_eq!(by_code(code, "").0, kind, "{code}");
        }
        assert_eq!(
            by_code("08P01", "unsupported startup parameter: options").0,
            Unusable
        );
    }
}
