//! Which database a command is for.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, build};
use crate::source::admin::Admin;
use crate::source::{SourceError, SourceErrorKind};

use super::failure::Failure;

/// A command at the prompt waits this long for a database, then says so.
const PATIENCE: Duration = Duration::from_secs(30);

/// One database with its operator's side.
pub(super) struct Target {
    /// Name from configuration.
    pub(super) name: String,
    /// The operator's side.
    pub(super) admin: Arc<dyn Admin>,
}

/// The database named by `--database`, or the only one.
pub(super) fn one(config: &Config, name: Option<&str>) -> Result<Target, Failure> {
    let mut found = all(config, name)?;
    match (found.len(), found.pop()) {
        (1, Some(target)) => Ok(target),
        _ => {
            let names: Vec<&str> = config.databases.keys().map(String::as_str).collect();
            Err(Failure::usage(format!(
                "there are several databases; choose one with --database: {}",
                names.join(", ")
            )))
        }
    }
}

/// The database named by `--database`, or all.
pub(super) fn all(config: &Config, name: Option<&str>) -> Result<Vec<Target>, Failure> {
    if config.databases.is_empty() {
        return Err(Failure::usage(NO_DATABASE));
    }
    let names: Vec<&str> = config.databases.keys().map(String::as_str).collect();
    if let Some(name) = name
        && !config.databases.contains_key(name)
    {
        return Err(Failure::usage(format!(
            "there is no database `{name}`; there is {}",
            names.join(", ")
        )));
    }
    let chosen = config
        .databases
        .iter()
        .filter(|(known, _)| name.is_none_or(|name| name == known.as_str()));
    chosen
        .map(|(name, database)| {
            Ok(Target {
                name: name.clone(),
                admin: build::outbox(name, database, config)?.admin,
            })
        })
        .collect()
}

/// What to do when nothing is configured.
pub(super) const NO_DATABASE: &str = "no database is configured: name a file with --config, put outboxd.toml here, or set \
     OUTBOXD__DATABASES__NAME__URL; `outboxd demo` needs none of it";

/// Waits for a database, but not for ever.
pub(super) async fn patiently<T>(
    call: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    match tokio::time::timeout(PATIENCE, call).await {
        Ok(result) => result,
        Err(_) => Err(SourceError::new(
            SourceErrorKind::Unavailable,
            format!("no answer within {} s", PATIENCE.as_secs()),
        )),
    }
}
