//! `outboxd discarded`: events that were set aside, and what to do with them.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use uuid::Uuid;

use super::Global;
use super::failure::Failure;
use super::operator::By;
use super::output::{Output, safe, say, table};
use super::target::{self, Target};
use crate::source::SourceError;
use crate::source::admin::{Discarded, DiscardedFilter, Overtakes};

#[derive(Debug, Args)]
pub(super) struct DiscardedArgs {
    #[command(subcommand)]
    command: DiscardedCommand,
}

#[derive(Debug, Subcommand)]
enum DiscardedCommand {
    /// What was set aside, newest first.
    List {
        #[command(flatten)]
        filter: Filter,
        /// How many at most.
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// Everything about some of them, payload included.
    Show {
        /// Ids of events.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<Uuid>,
        #[command(flatten)]
        filter: Filter,
    },
    /// Put them back into the outbox, to be delivered again.
    #[command(after_help = "\
Examples:
  outboxd discarded requeue 0199c1a0-…                       one event
  outboxd discarded requeue --sink events --cause retry_budget --all --reason 'consumer fixed'

A requeued event keeps its place: it goes out before later events of its key that are still pending. Where later
events of its key went out meanwhile it would come behind them, out of order: that takes --force. How many there are
is told; --dry-run tells it and changes nothing.")]
    Requeue {
        #[command(flatten)]
        act: Act,
        /// Also those that come behind later events of their key.
        #[arg(long)]
        force: bool,
    },
    /// Delete them for good.
    #[command(after_help = "\
Examples:
  outboxd discarded drop 0199c1a0-…
  outboxd discarded drop --kind 'test.*' --all --reason 'left over from a load test'

This cannot be undone. What was done, by whom and why is kept in the outbox's audit table.")]
    Drop(Act),
}

/// Which ones. All conditions must hold.
#[derive(Debug, Args)]
struct Filter {
    /// Set aside for this sink.
    #[arg(long, value_name = "SINK")]
    sink: Option<String>,
    /// Of this kind; a trailing * takes all kinds that start so.
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// With this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Set aside because of this.
    #[arg(long, value_name = "CAUSE", value_parser = ["permanent", "retry_budget", "crashed", "operator", "cancelled"])]
    cause: Option<String>,
    /// With this code, such as too_large or invalid_subject.
    #[arg(long, value_name = "CODE")]
    code: Option<String>,
    /// Set aside at least this long ago, such as 90m or 7d.
    #[arg(long, value_name = "TIME", value_parser = super::publish::delay)]
    older_than: Option<Duration>,
    /// In this database (a name from the configuration). Not needed when there is only one.
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
}

#[derive(Debug, Args)]
struct Act {
    /// Ids of events.
    #[arg(value_name = "ID")]
    ids: Vec<Uuid>,
    #[command(flatten)]
    filter: Filter,
    /// All that the conditions select, however many.
    #[arg(long)]
    all: bool,
    /// Change nothing: say how many, and which.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    by: By,
}

impl Filter {
    fn with(&self, ids: &[Uuid]) -> DiscardedFilter {
        DiscardedFilter {
            ids: ids.to_vec(),
            sink: self.sink.clone(),
            kind: self.kind.clone(),
            ordering_key: self.key.clone(),
            reason: self.cause.clone(),
            code: self.code.clone(),
            older_than: self.older_than,
        }
    }

    fn is_empty(&self) -> bool {
        self.sink.is_none()
            && self.kind.is_none()
            && self.key.is_none()
            && self.cause.is_none()
            && self.code.is_none()
            && self.older_than.is_none()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Requeue { force: bool },
    Drop,
}

pub(super) async fn run(
    global: &Global,
    args: &DiscardedArgs,
    out: &Output,
) -> Result<(), Failure> {
    let loaded = global.load_for_command()?;
    let target = |filter: &Filter| target::one(&loaded.config, filter.database.as_deref());
    match &args.command {
        DiscardedCommand::List { filter, limit } => {
            list(&target(filter)?, &filter.with(&[]), *limit, out).await
        }
        DiscardedCommand::Show { ids, filter } => {
            show(&target(filter)?, &filter.with(ids), out).await
        }
        DiscardedCommand::Requeue { act, force } => {
            let action = Action::Requeue { force: *force };
            apply(&target(&act.filter)?, act, action, out).await
        }
        DiscardedCommand::Drop(act) => apply(&target(&act.filter)?, act, Action::Drop, out).await,
    }
}

async fn list(
    target: &Target,
    filter: &DiscardedFilter,
    limit: u32,
    out: &Output,
) -> Result<(), Failure> {
    let found = fetch(target, filter, limit).await?;
    if found.len() == limit as usize {
        say(format_args!(
            "there may be more: raise --limit (now {limit})"
        ));
    }
    out.write(&found, |found| {
        let rows: Vec<Vec<String>> = found.iter().map(row).collect();
        table(HEAD, &rows)
    })
}

const HEAD: &[&str] = &[
    "ID",
    "SINK",
    "KIND",
    "KEY",
    "CAUSE",
    "CODE",
    "ATTEMPTS",
    "WHEN",
    "LAST ERROR",
];

fn row(event: &Discarded) -> Vec<String> {
    vec![
        event.id.to_string(),
        event.sink.clone(),
        safe(&event.kind),
        safe(event.ordering_key.as_deref().unwrap_or("-")),
        event.reason.clone(),
        event.code.clone().unwrap_or_else(|| "-".to_owned()),
        event.attempts.to_string(),
        event.discarded_at.clone(),
        safe(&event.last_error),
    ]
}

async fn show(target: &Target, filter: &DiscardedFilter, out: &Output) -> Result<(), Failure> {
    let found = fetch(target, filter, u32::MAX).await?;
    out.write(&found, |found| {
        found.iter().map(in_full).collect::<Vec<_>>().join("\n")
    })?;
    all_found(filter, &found)
}

fn in_full(event: &Discarded) -> String {
    let key = event.ordering_key.as_deref().unwrap_or("(none)");
    let code = event.code.as_deref().unwrap_or("-");
    let payload = event.payload.as_deref().unwrap_or("(not kept)");
    format!(
        "id          {}\nseq         {}\nsink        {}\nkind        {}\nkey         {}\ncause       {} ({code})\n\
         attempts    {}\nwhen        {}\nlast error  {}\nheaders     {}\npayload     {} bytes\n{}\n",
        event.id,
        event.seq,
        event.sink,
        safe(&event.kind),
        safe(key),
        event.reason,
        event.attempts,
        event.discarded_at,
        safe(&event.last_error),
        safe(&event.headers),
        event.size,
        safe(payload),
    )
}

/// An id that was named and is not there deserves a word: it may be a slip, or already handled.
fn all_found(filter: &DiscardedFilter, found: &[Discarded]) -> Result<(), Failure> {
    let missing: Vec<String> = filter
        .ids
        .iter()
        .filter(|id| !found.iter().any(|event| event.id == **id))
        .map(Uuid::to_string)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "not among the discarded events: {}",
        missing.join(", ")
    )))
}

/// One event by its id, or many when it is said that many are meant.
async fn apply(target: &Target, act: &Act, action: Action, out: &Output) -> Result<(), Failure> {
    let mut filter = act.filter.with(&act.ids);
    if act.ids.is_empty() && !act.all {
        if act.filter.is_empty() {
            return Err(Failure::usage(
                "which ones? name ids, or conditions, or --all",
            ));
        }
        // To look at many is no slip.
        if !act.dry_run {
            only_one(target, &mut filter).await?;
        }
    }
    // Nothing is done when an id is wrong: half of a list is harder to put right than none of it.
    if !act.ids.is_empty() {
        all_found(&filter, &fetch(target, &filter, u32::MAX).await?)?;
    }
    let mut overtakes = None;
    if let Action::Requeue { force } = action {
        let found = target::patiently(target.admin.overtakes(&filter)).await;
        let found = found.map_err(|error| refused(target, &error))?;
        say_overtakes(&found);
        if found.late > 0 && !force && !act.dry_run {
            return Err(Failure::failed(
                "their key's order would be lost, so nothing was put back: select others, or add --force",
            ));
        }
        overtakes = Some(found);
    }
    if act.dry_run {
        return dry_run(target, &filter, action, overtakes, out).await;
    }
    let by = act.by.operator();
    let (done, key, word) = match action {
        Action::Requeue { .. } => {
            let done = target::patiently(target.admin.requeue(&filter, &by)).await;
            (done, "requeued", "put back")
        }
        Action::Drop => {
            let done = target::patiently(target.admin.drop_discarded(&filter, &by)).await;
            (done, "dropped", "deleted")
        }
    };
    let count = done.map_err(|error| refused(target, &error))?;
    let document = json!({ "database": target.name, key: count, "overtakes": overtakes });
    out.write(&document, |_| format!("{count} {word}"))
}

/// Conditions without --all may select one event: exactly the one that was seen, whatever has been discarded
/// since.
async fn only_one(target: &Target, filter: &mut DiscardedFilter) -> Result<(), Failure> {
    let found = fetch(target, filter, 2).await?;
    match found.as_slice() {
        [] => Ok(()),
        [one] => {
            filter.ids = vec![one.id];
            filter.sink = Some(one.sink.clone());
            Ok(())
        }
        _ => Err(Failure::usage(
            "more than one event is selected; look with --dry-run, then add --all",
        )),
    }
}

fn say_overtakes(overtakes: &Overtakes) {
    let Overtakes {
        pending_keys,
        pending_events,
        late,
        late_bounded,
        ..
    } = overtakes;
    if *pending_events > 0 {
        say(format_args!(
            "they go in front of {pending_events} pending events of {pending_keys} keys, as far as those are not out"
        ));
    }
    if *late > 0 {
        say(format_args!(
            "{late} of them come behind later events of their key that their sink has already"
        ));
    }
    if *late_bounded {
        say(format_args!(
            "the history was not looked at whole: more of them may come behind events that are published"
        ));
    }
}

/// What would be done: how many, and which.
async fn dry_run(
    target: &Target,
    filter: &DiscardedFilter,
    action: Action,
    overtakes: Option<Overtakes>,
    out: &Output,
) -> Result<(), Failure> {
    /// Most events named.
    const NAMED: u32 = 1_000;
    let found = fetch(target, filter, NAMED + 1).await?;
    let more = found.len() > NAMED as usize;
    let named = &found[..found.len().min(NAMED as usize)];
    let events: Vec<_> = named
        .iter()
        .map(|event| {
            json!({
                "id": event.id,
                "seq": event.seq,
                "sink": event.sink,
                "kind": event.kind,
                "key": event.ordering_key,
            })
        })
        .collect();
    let (key, word) = match action {
        Action::Requeue { .. } => ("requeued", "put back"),
        Action::Drop => ("dropped", "deleted"),
    };
    if more {
        say(format_args!(
            "more than {NAMED} are selected; the newest are named"
        ));
    }
    let document = json!({
        "database": target.name,
        "dry_run": true,
        key: named.len(),
        "bounded": more,
        "events": events,
        "overtakes": overtakes,
    });
    out.write(&document, |_| {
        let least = if more { "more than " } else { "" };
        let rows: Vec<Vec<String>> = named.iter().map(row).collect();
        format!(
            "{least}{} would be {word}\n{}",
            named.len(),
            table(HEAD, &rows)
        )
    })
}

async fn fetch(
    target: &Target,
    filter: &DiscardedFilter,
    limit: u32,
) -> Result<Vec<Discarded>, Failure> {
    target::patiently(target.admin.discarded(filter, limit))
        .await
        .map_err(|error| refused(target, &error))
}

fn refused(target: &Target, error: &SourceError) -> Failure {
    Failure::database(&target.name, error)
}
