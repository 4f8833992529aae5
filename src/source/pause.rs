//! What operators hold back: a source, a sink, a route, or one ordering key.
//!
//! A pause is state in the outbox, not a command: it stands until somebody takes it back, through every
//! restart and whoever owns the outbox. Nothing is charged and nothing is discarded for it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{SourceError, SourceErrorKind};

/// Most pauses of one outbox; an owner holds them in memory.
pub const MAX_PAUSES: u32 = 10_000;

/// What can be paused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "scope", rename_all = "lowercase")]
pub enum Target {
    /// The whole outbox.
    Source,
    /// What goes to one sink.
    Sink {
        /// Its name.
        name: String,
    },
    /// Events of one route.
    Route {
        /// Its name.
        name: String,
    },
    /// Events of one ordering key.
    Key {
        /// The key.
        name: String,
        /// For this sink only; `None` for all.
        sink: Option<String>,
    },
}

impl Target {
    /// Scope, name and sink as tables hold them.
    pub fn parts(&self) -> (&'static str, &str, &str) {
        match self {
            Self::Source => ("source", "", ""),
            Self::Sink { name } => ("sink", name, ""),
            Self::Route { name } => ("route", name, ""),
            Self::Key { name, sink } => ("key", name, sink.as_deref().unwrap_or_default()),
        }
    }

    /// From what a table holds; `None` for a scope that this version does not know.
    pub fn from_parts(scope: &str, name: String, sink: String) -> Option<Self> {
        match scope {
            "source" => Some(Self::Source),
            "sink" => Some(Self::Sink { name }),
            "route" => Some(Self::Route { name }),
            "key" => Some(Self::Key {
                name,
                sink: (!sink.is_empty()).then_some(sink),
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source => f.write_str("the source"),
            Self::Sink { name } => write!(f, "sink {name}"),
            Self::Route { name } => write!(f, "route {name}"),
            Self::Key { name, sink: None } => write!(f, "key {name}"),
            Self::Key {
                name,
                sink: Some(sink),
            } => write!(f, "key {name} for sink {sink}"),
        }
    }
}

/// Something that is held back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// What.
    #[serde(flatten)]
    pub target: Target,
    /// By whom.
    pub by: String,
    /// Since when, RFC 3339.
    pub since: String,
    /// Why.
    pub reason: Option<String>,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            target, by, since, ..
        } = self;
        write!(f, "{target} is paused by {by} since {since}")?;
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// The refusal of one pause more than [`MAX_PAUSES`].
pub(crate) fn too_many() -> SourceError {
    SourceError::new(
        SourceErrorKind::Refused,
        format!(
            "{MAX_PAUSES} things are paused already, which is the most; resume some, or pause a route or a \
             sink instead of single keys"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_survive_their_table_and_their_json() {
        let targets = [
            Target::Source,
            Target::Sink { name: "a".into() },
            Target::Route { name: "b".into() },
            Target::Key {
                name: "k\n".into(),
                sink: None,
            },
            Target::Key {
                name: "k".into(),
                sink: Some("a".into()),
            },
        ];
        for target in targets {
            let (scope, name, sink) = target.parts();
            let back = Target::from_parts(scope, name.to_owned(), sink.to_owned());
            assert_eq!(back.as_ref(), Some(&target));
            let pause = Pause {
                target,
                by: "x".into(),
                since: "now".into(),
                reason: None,
            };
            let text = serde_json::to_string(&pause).expect("serializes");
            let back: Pause = serde_json::from_str(&text).expect("parses");
            assert_eq!(back, pause, "{text}");
        }
        assert_eq!(
            Target::from_parts("moon", String::new(), String::new()),
            None
        );
    }
}
