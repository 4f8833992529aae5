//! `outboxd migrate`: create the outbox, or bring it up to date.

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::failure::{Code, Failure, about, in_words};
use super::output::{Output, say};
use super::{Global, target};
use crate::source::admin::{Migrated, PendingMigration, Roles};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  outboxd migrate                          every configured database
  outboxd migrate --database orders        only this one
  outboxd migrate --dry-run > review.sql   what would run, for somebody else to read or run
  outboxd migrate --print-grants           the rights that the roles need; the roles must exist")]
pub(super) struct MigrateArgs {
    /// Only this database (a name from the configuration).
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// Change nothing: print the SQL that would run.
    #[arg(long)]
    dry_run: bool,
    /// Change nothing: print the SQL that grants the rights which the roles below need, and no more.
    #[arg(long, conflicts_with = "dry_run")]
    print_grants: bool,
    /// With --print-grants: the role that runs the relay.
    #[arg(long, value_name = "ROLE", default_value = "outboxd_relay")]
    relay_role: String,
    /// With --print-grants: the role of applications that insert events.
    #[arg(long, value_name = "ROLE", default_value = "outboxd_writer")]
    writer_role: String,
    /// With --print-grants: the role of whoever looks at status and discarded events, and of monitoring.
    #[arg(long, value_name = "ROLE", default_value = "outboxd_viewer")]
    viewer_role: String,
    /// With --print-grants: the role of operators who pause, skip, requeue and drop.
    #[arg(long, value_name = "ROLE", default_value = "outboxd_operator")]
    operator_role: String,
}

#[derive(Debug, Serialize)]
struct Done {
    database: String,
    #[serde(flatten)]
    migrated: Migrated,
}

pub(super) async fn run(global: &Global, args: &MigrateArgs, out: &Output) -> Result<(), Failure> {
    let loaded = global.load_for_command()?;
    let targets = target::all(&loaded.config, args.database.as_deref())?;
    if args.print_grants {
        let roles = Roles {
            relay: args.relay_role.clone(),
            writer: args.writer_role.clone(),
            viewer: args.viewer_role.clone(),
            operator: args.operator_role.clone(),
        };
        let all: Vec<_> = targets
            .iter()
            .map(|target| (target.name.as_str(), target.admin.grants(&roles)))
            .collect();
        return print_grants(out, &all);
    }
    let mut worst = None;
    let mut fail = |name: &str, error: crate::source::SourceError| {
        let words = about("database", name, &in_words(&error));
        say(format_args!("error: {words}"));
        match Code::of(&error) {
            Code::Database => worst = Some(Code::Database),
            code => {
                worst.get_or_insert(code);
            }
        }
    };
    if args.dry_run {
        let mut all = Vec::new();
        for target in &targets {
            match target::patiently(target.admin.pending_sql()).await {
                Ok(pending) => all.push((target.name.clone(), pending)),
                Err(error) => fail(&target.name, error),
            }
        }
        print_sql(out, &all)?;
    } else {
        let mut done = Vec::new();
        // No limit here: other instances may be migrating, and a large table takes its time.
        for target in &targets {
            match target.admin.migrate().await {
                Ok(migrated) => done.push(Done {
                    database: target.name.clone(),
                    migrated,
                }),
                Err(error) => fail(&target.name, error),
            }
        }
        out.write(&done, |done| done.iter().map(in_a_line).collect())?;
    }
    worst.map_or(Ok(()), |code| Err(Failure::said(code)))
}

fn print_grants(out: &Output, all: &[(&str, Option<String>)]) -> Result<(), Failure> {
    let document: Vec<_> = all
        .iter()
        .map(|(database, sql)| json!({ "database": database, "sql": sql }))
        .collect();
    out.write(&document, |_| {
        all.iter()
            .map(|(database, sql)| match sql {
                Some(sql) => format!("-- {database}\n{}\n", sql.trim_end()),
                None => format!("-- {database}: this database knows no roles\n"),
            })
            .collect()
    })
}

fn in_a_line(done: &Done) -> String {
    let Migrated { from, to } = done.migrated;
    let name = &done.database;
    match from {
        _ if from == to => format!("{name}: up to date (version {to})\n"),
        0 => format!("{name}: created (version {to})\n"),
        _ => format!("{name}: from version {from} to {to}\n"),
    }
}

fn print_sql(out: &Output, all: &[(String, Vec<PendingMigration>)]) -> Result<(), Failure> {
    let document: Vec<_> = all
        .iter()
        .map(|(database, pending)| json!({ "database": database, "pending": pending }))
        .collect();
    out.write(&document, |_| {
        let mut text = String::new();
        for (database, pending) in all {
            if pending.is_empty() {
                text.push_str(&format!("-- {database}: nothing to do\n"));
            }
            for migration in pending {
                text.push_str(&format!(
                    "-- {database}: version {}, {}\n{}\n",
                    migration.version,
                    migration.name,
                    migration.sql.trim_end()
                ));
            }
        }
        text
    })
}
