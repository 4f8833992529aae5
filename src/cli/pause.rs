//! `outboxd pause` and `outboxd resume`: hold back a source, a sink or a route, and let it go on.

use clap::{Args, ValueEnum};
use serde_json::json;

use super::Global;
use super::failure::Failure;
use super::operator::By;
use super::output::{Output, safe, say};
use super::target::{self, patiently};
use crate::config::Config;
use crate::source::pause::Target;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outboxd pause sink events --reason 'stream is being moved'
  outboxd pause route mails --database orders
  outboxd pause source orders
  outboxd resume sink events

It holds within a second in every running instance, through restarts, until it is resumed. What is out
finishes; what is not goes back. Nothing is charged and nothing is set aside. Single keys: outboxd keys.")]
pub(super) struct PauseArgs {
    /// What NAME is: a database, a sink or a route from the configuration.
    #[arg(value_enum, value_name = "WHAT")]
    scope: Scope,
    /// Its name.
    #[arg(value_name = "NAME")]
    name: String,
    /// Of this database only is the sink or the route meant (a name from the configuration). Not needed when
    /// there is only one.
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    #[command(flatten)]
    by: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scope {
    /// Nothing of the database is read or sent. Its owner stays the owner.
    Source,
    /// Nothing is sent from the database to the sink; other sinks go on.
    Sink,
    /// Events of the route wait, and what stands behind them in their keys; other keys go on.
    Route,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Pause,
    Resume,
}

pub(super) async fn run(
    global: &Global,
    args: &PauseArgs,
    action: Action,
    out: &Output,
) -> Result<(), Failure> {
    let loaded = global.load_for_command()?;
    let config = &loaded.config;
    let (database, what) = match args.scope {
        Scope::Source => {
            if args
                .database
                .as_ref()
                .is_some_and(|name| *name != args.name)
            {
                return Err(Failure::usage(
                    "a source is a database: give its name once, without --database",
                ));
            }
            (Some(args.name.as_str()), Target::Source)
        }
        Scope::Sink => (
            args.database.as_deref(),
            Target::Sink {
                name: args.name.clone(),
            },
        ),
        Scope::Route => (
            args.database.as_deref(),
            Target::Route {
                name: args.name.clone(),
            },
        ),
    };
    let target = target::one(config, database)?;
    // What was paused under a name that is gone from the configuration can still be resumed.
    if action == Action::Pause {
        is_known(config, args)?;
    }
    let by = args.by.operator();
    let done = match action {
        Action::Pause => patiently(target.admin.pause(&what, &by)).await,
        Action::Resume => patiently(target.admin.resume(&what, &by)).await,
    };
    let changed = done.map_err(|error| Failure::database(&target.name, &error))?;
    if !changed {
        if action == Action::Resume {
            is_known(config, args)?;
        }
        say(format_args!(
            "database {}: {} {}; nothing is changed",
            target.name,
            safe(&what.to_string()),
            match action {
                Action::Pause => "is paused already",
                Action::Resume => "is not paused",
            }
        ));
    }
    let (key, word) = match action {
        Action::Pause => ("paused", "is paused"),
        Action::Resume => ("resumed", "goes on"),
    };
    let document = json!({ "database": target.name, "target": what, key: changed });
    out.write(&document, |_| match changed {
        true => format!(
            "database {}: {} {word}",
            target.name,
            safe(&what.to_string())
        ),
        false => String::new(),
    })
}

/// A slip in a name would pause nothing, and nobody would notice.
fn is_known(config: &Config, args: &PauseArgs) -> Result<(), Failure> {
    let (what, names): (_, Vec<&str>) = match args.scope {
        Scope::Source => return Ok(()),
        Scope::Sink => ("sink", config.sinks.keys().map(String::as_str).collect()),
        Scope::Route => ("route", config.routes.keys().map(String::as_str).collect()),
    };
    if names.contains(&args.name.as_str()) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "there is no {what} `{}`; there is {}",
        safe(&args.name),
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    )))
}
