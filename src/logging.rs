//! Log output of the binary: one subscriber, on standard error, for people or as JSON lines.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::{Log, LogFormat};

/// What other crates say that is no news to an operator: the broker client logs every reconnect
/// attempt, which the relay shows as one state change, and ractor's spans last as long as their actor.
const QUIET: &str = "async_nats=warn,sqlx=warn,ractor=off,hyper=warn";

/// Starts log output. RUST_LOG, when set, goes before `log.level`. Does nothing when the process has a
/// subscriber already.
pub fn start(log: &Log) {
    let from_env = std::env::var("RUST_LOG")
        .ok()
        .filter(|directives| !directives.is_empty())
        .and_then(|directives| filter(&directives).ok());
    let filter = from_env
        .or_else(|| filter(&log.level).ok())
        .unwrap_or_else(|| EnvFilter::new(format!("info,{QUIET}")));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // An error means that somebody else's subscriber is in place, which then has our lines too.
    let _ = match log.format {
        LogFormat::Human => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(false).try_init(),
    };
}

/// A filter from a level with exceptions, such as `info,sqlx=debug`, over our own exceptions.
///
/// # Errors
/// A word that is neither a level nor a directive.
pub fn filter(directives: &str) -> Result<EnvFilter, ParseError> {
    // A bare word that is no level would be taken for a target, and everything but it would fall silent.
    let bare = directives
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty() && !word.contains(['=', '[', ':']));
    for word in bare {
        word.parse::<tracing_subscriber::filter::LevelFilter>()
            .map_err(|_| unreadable())?;
    }
    EnvFilter::builder().parse(format!("info,{QUIET},{directives}"))
}

fn unreadable() -> ParseError {
    match "a=no-level".parse::<tracing_subscriber::filter::Directive>() {
        Err(error) => error,
        Ok(_) => unreachable!("no-level is no level"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_exceptions_are_read_and_our_exceptions_stay() {
        let shown = filter("debug,sqlx=trace").expect("parses").to_string();
        for part in ["debug", "sqlx=trace", "async_nats=warn", "ractor=off"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(
            !shown.contains("sqlx=warn") && !shown.contains("info"),
            "{shown}"
        );
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for quiet in ["off", "warn"] {
            assert!(filter(quiet).is_ok(), "{quiet}");
        }
        for bad in ["loud", "sqlx=loud", "info;debug"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
