//! `outboxd discarded`: events that were set aside, and what to do with them.

use clap::{Args, Subcommand};
use serde_json::json;
use uuid::Uuid;

use super::Global;
use super::failure::Failure;
use super::output::{Output, safe, say, table};
use super::target::{self, Target};
use crate::source::SourceError;
use crate::source::admin::{Discarded, DiscardedFilter, Operator};

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

A requeued event goes out behind later events of its key: the one exception to the order of a key.")]
    Requeue(Act),
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
    /// Why, for the audit.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who, for the audit. Without it: $USER.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl Filter {
    fn with(&self, ids: &[Uuid]) -> DiscardedFilter {
        DiscardedFilter {
            ids: ids.to_vec(),
            sink: self.sink.clone(),
            kind: self.kind.clone(),
            ordering_key: self.key.clone(),
            reason: self.cause.clone(),
        }
    }

    fn is_empty(&self) -> bool {
        self.sink.is_none() && self.kind.is_none() && self.key.is_none() && self.cause.is_none()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Requeue,
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
        DiscardedCommand::Requeue(act) => {
            apply(&target(&act.filter)?, act, Action::Requeue, out).await
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
        table(
            &[
                "ID",
                "SINK",
                "KIND",
                "KEY",
                "CAUSE",
                "CODE",
                "ATTEMPTS",
                "WHEN",
                "LAST ERROR",
            ],
            &rows,
        )
    })
}

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
        let found = fetch(target, &filter, 2).await?;
        match found.as_slice() {
            [] => {}
            // Exactly the one that was seen, whatever has been discarded since.
            [one] => {
                filter.ids = vec![one.id];
                filter.sink = Some(one.sink.clone());
            }
            _ => {
                return Err(Failure::usage(
                    "more than one event is selected; look with `outboxd discarded list`, then add --all",
                ));
            }
        }
    }
    // Nothing is done when an id is wrong: half of a list is harder to put right than none of it.
    if !act.ids.is_empty() {
        all_found(&filter, &fetch(target, &filter, u32::MAX).await?)?;
    }
    let by = Operator {
        name: operator(act.by.as_deref()),
        reason: act.reason.clone(),
    };
    let (done, key, word) = match action {
        Action::Requeue => {
            let done = target::patiently(target.admin.requeue(&filter, &by)).await;
            (done, "requeued", "put back")
        }
        Action::Drop => {
            let done = target::patiently(target.admin.drop_discarded(&filter, &by)).await;
            (done, "dropped", "deleted")
        }
    };
    let count = done.map_err(|error| refused(target, &error))?;
    out.write(&json!({ "database": target.name, key: count }), |_| {
        format!("{count} {word}")
    })
}

fn operator(by: Option<&str>) -> String {
    by.map(str::to_owned)
        .or_else(|| std::env::var("USER").ok().filter(|user| !user.is_empty()))
        .unwrap_or_else(|| "unknown".to_owned())
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
