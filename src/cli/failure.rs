//! How a command fails: words for people, a code for scripts.

use std::process::ExitCode;

use super::output;
use crate::config::ConfigError;
use crate::sink::SinkError;
use crate::source::{SourceError, SourceErrorKind};

/// What went wrong, as scripts tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// Failed.
    Failed = 1,
    /// Wrong usage or configuration.
    Usage = 2,
    /// A check found something.
    Finding = 3,
    /// A database cannot be reached.
    Database = 4,
    /// A sink cannot be reached.
    Sink = 5,
}

impl Code {
    /// Whether a database could not be reached, or said no.
    pub(super) fn of(error: &SourceError) -> Self {
        match error.kind {
            SourceErrorKind::Unavailable | SourceErrorKind::ReadOnly => Self::Database,
            _ => Self::Failed,
        }
    }
}

/// A command that did not do what it should.
#[derive(Debug)]
pub(super) struct Failure {
    code: Code,
    /// `None`: everything was said already, or nobody listens any more.
    words: Option<String>,
}

impl Failure {
    pub(super) fn new(code: Code, words: impl Into<String>) -> Self {
        Self {
            code,
            words: Some(words.into()),
        }
    }

    pub(super) fn failed(words: impl Into<String>) -> Self {
        Self::new(Code::Failed, words)
    }

    pub(super) fn usage(words: impl Into<String>) -> Self {
        Self::new(Code::Usage, words)
    }

    /// A failure whose words the command has said already.
    pub(super) fn said(code: Code) -> Self {
        Self { code, words: None }
    }

    /// A database's refusal, with its name.
    pub(super) fn database(name: &str, error: &SourceError) -> Self {
        let words = in_words(error);
        Self::new(Code::of(error), about("database", name, &words))
    }

    /// A sink that cannot be reached, with its name.
    pub(super) fn sink(name: &str, error: &SinkError) -> Self {
        Self::new(Code::Sink, about("sink", name, &in_words(error)))
    }

    /// Says it and gives the exit code.
    pub(super) fn report(self) -> ExitCode {
        if let Some(words) = &self.words {
            output::say(format_args!("error: {words}"));
        }
        ExitCode::from(self.code as u8)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

/// Words with the name of what they are about, unless they begin with it already.
pub(super) fn about(part: &str, name: &str, words: &str) -> String {
    let subject = format!("{part} {name}: ");
    if words.starts_with(&subject) {
        words.to_owned()
    } else {
        subject + words
    }
}

/// Words without the name of what they are about, for a place that shows the name already.
pub(super) fn within(part: &str, name: &str, words: &str) -> String {
    let subject = format!("{part} {name}: ");
    words.strip_prefix(&subject).unwrap_or(words).to_owned()
}

/// An error with its causes, without repeating what the message says already.
pub(super) fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        cause = error.source();
    }
    words
}
