//! `outboxd keys`: what ordering keys wait for, and what an operator can do about it.

use clap::{Args, Subcommand};
use serde_json::json;

use super::Global;
use super::failure::Failure;
use super::operator::By;
use super::output::{Output, safe, say};
use super::target::{self, Target as Database, patiently};
use crate::config::{Config, build};
use crate::source::SourceError;
use crate::source::pause::Target;
use crate::source::waiting::{KeyName, Pick, WaitsFor};
use place::{Place, Scene};

mod act;
mod list;
mod place;
mod show;

#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Keys that wait: blocked, backing off, delayed, paused, to be skipped.
    #[command(after_help = "\
Keys held back by a paused source, sink or route are not listed one by one; the pause is told instead.
The column KEY can be pasted behind `outboxd keys show`.")]
    List(ListArgs),
    /// Everything about one key: for each sink the head, what it waits for, since when, what is behind it.
    Show(KeyArgs),
    /// Hold one key back at its head. Other keys go on.
    Pause(Act),
    /// Let a key go on: ends its pause, makes a backed-off head due at once, and gives one whose budget is spent
    /// a fresh one.
    #[command(after_help = "\
A delayed event keeps the time that its writer gave it.")]
    Resume(Act),
    /// Set the head of a key aside with reason `operator`, so that the key moves on.
    #[command(after_help = "\
The instance that delivers does it as soon as the event is not out: at once if it waits, after the answer if
it is on its way (if the sink takes it then, it is published and nothing is set aside), and when an instance
runs again if none does. `outboxd discarded` shows it afterwards, and can put it back.")]
    Skip(Skip),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// For this sink.
    #[arg(long, value_name = "SINK")]
    sink: Option<String>,
    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// In this database (a name from the configuration). Not needed when there is only one.
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
}

/// Which key.
#[derive(Debug, Args)]
struct KeyArgs {
    /// The ordering key.
    #[arg(value_name = "KEY", required_unless_present = "seq")]
    key: Option<String>,
    /// KEY is percent-encoded, as in the header Outbox-Key: for keys that a terminal cannot show.
    #[arg(long)]
    encoded: bool,
    /// Instead of a key: the event without a key at this seq.
    #[arg(long, value_name = "N", conflicts_with = "key")]
    seq: Option<i64>,
    /// For this sink. Without it: for all.
    #[arg(long, value_name = "SINK")]
    sink: Option<String>,
    /// In this database (a name from the configuration). Not needed when there is only one.
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
}

#[derive(Debug, Args)]
struct Act {
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    by: By,
}

#[derive(Debug, Args)]
struct Skip {
    #[command(flatten)]
    key: KeyArgs,
    /// Only if the head is the event at this seq.
    #[arg(long, value_name = "N")]
    head: Option<i64>,
    /// Change nothing: say which events would be set aside.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    by: By,
}

impl KeyArgs {
    fn name(&self) -> Result<KeyName, Failure> {
        if let Some(seq) = self.seq {
            return Ok(KeyName::Alone(seq));
        }
        let given = self.key.clone().unwrap_or_default();
        let key = match self.encoded {
            true => crate::envelope::decoded(&given)
                .ok_or_else(|| Failure::usage("KEY is not valid percent-encoding of UTF-8 text"))?,
            false => given,
        };
        if key.is_empty() || key.len() > 512 {
            return Err(Failure::usage("an ordering key has 1 to 512 bytes"));
        }
        Ok(KeyName::Named(key))
    }
}

pub(super) async fn run(global: &Global, args: &KeysArgs, out: &Output) -> Result<(), Failure> {
    let loaded = global.load_for_command()?;
    let config = &loaded.config;
    match &args.command {
        KeysCommand::List(list) => {
            let database = target::one(config, list.database.as_deref())?;
            known_sink(config, list.sink.as_deref())?;
            list::list(config, &database, list, out).await
        }
        KeysCommand::Show(key) => show::show(&Scene::of(config, key)?, out).await,
        KeysCommand::Pause(act) => act::pause(&Scene::of(config, &act.key)?, &act.by, out).await,
        KeysCommand::Resume(act) => act::resume(&Scene::of(config, &act.key)?, &act.by, out).await,
        KeysCommand::Skip(skip) => act::skip(&Scene::of(config, &skip.key)?, skip, out).await,
    }
}

/// A slip in a name would select nothing, and nobody would notice.
pub(super) fn known_sink(config: &Config, sink: Option<&str>) -> Result<(), Failure> {
    match sink {
        Some(sink) if !config.sinks.contains_key(sink) => {
            let names: Vec<&str> = config.sinks.keys().map(String::as_str).collect();
            Err(Failure::usage(format!(
                "there is no sink `{}`; there is {}",
                safe(sink),
                names.join(", ")
            )))
        }
        _ => Ok(()),
    }
}

fn refused(database: &Database, error: &SourceError) -> Failure {
    Failure::database(&database.name, error)
}

/// A key as it can be pasted behind a command: percent-encoded where a terminal would not show it as it is.
fn pasteable(key: &KeyName) -> String {
    let key = match key {
        KeyName::Alone(seq) => return format!("--seq {seq}"),
        KeyName::Named(key) => key,
    };
    let plain = key
        .chars()
        .all(|c| c.is_ascii_graphic() || c.is_alphanumeric())
        && !key.starts_with('-')
        && !key.contains([
            '\'', '"', '\\', '$', '`', '*', '?', '&', ';', '|', '<', '>', '(', ')', '!', '#',
        ]);
    match plain {
        true => key.clone(),
        false => format!("--encoded {}", crate::envelope::encoded(key)),
    }
}
