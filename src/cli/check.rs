//! `outboxd check`: is everything in place?

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::Global;
use super::failure::{Code, Failure, in_words, within};
use super::output::{Output, table};
use super::target::{self, NO_DATABASE};
use crate::config::{Config, build};
use crate::route::Routes;
use crate::sink::SinkError;
use crate::source::{SourceError, SourceErrorKind};

/// Pending kinds looked at per database.
const KINDS: u32 = 1_000;

/// A sink gets this long to answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// What was found about one part.
#[derive(Debug, Serialize)]
struct Part {
    part: &'static str,
    name: String,
    /// It answered.
    reachable: bool,
    /// What is wrong, one sentence each.
    findings: Vec<String>,
    /// What is worth knowing, one sentence each.
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    parts: Vec<Part>,
    warnings: Vec<String>,
}

pub(super) async fn run(global: &Global, out: &Output) -> Result<(), Failure> {
    let loaded = global.load_for_command()?;
    let config = &loaded.config;
    if config.databases.is_empty() {
        return Err(Failure::usage(NO_DATABASE));
    }
    let routes = build::routes(config);
    let mut kinds: BTreeSet<String> = routes
        .iter()
        .flat_map(|route| route.kinds.iter())
        .filter(|kind| !kind.ends_with('*'))
        .cloned()
        .collect();
    let mut parts = Vec::new();
    for name in config.databases.keys() {
        parts.push(database(name, config, &routes, &mut kinds).await?);
    }
    for name in config.sinks.keys() {
        parts.push(sink(name, config, &routes, &kinds).await?);
    }
    let report = Report {
        ok: parts.iter().all(|part| part.findings.is_empty()),
        parts,
        warnings: loaded.warnings.clone(),
    };
    out.write(&report, words)?;
    verdict(&report)
}

/// An unreachable database goes before an unreachable sink, and both before everything else, because
/// the rest could not be looked at.
fn verdict(report: &Report) -> Result<(), Failure> {
    let unreachable = |part: &str| {
        report
            .parts
            .iter()
            .any(|found| found.part == part && !found.reachable)
    };
    if unreachable("database") {
        Err(Failure::said(Code::Database))
    } else if unreachable("sink") {
        Err(Failure::said(Code::Sink))
    } else if !report.ok {
        Err(Failure::said(Code::Finding))
    } else {
        Ok(())
    }
}

fn words(report: &Report) -> String {
    let mut rows = Vec::new();
    for part in &report.parts {
        let mut lines: Vec<(&str, &str)> = part
            .findings
            .iter()
            .map(|finding| ("problem", finding.as_str()))
            .chain(part.remarks.iter().map(|remark| ("note", remark.as_str())))
            .collect();
        if part.findings.is_empty() {
            lines.insert(0, ("ok", ""));
        }
        for (state, line) in lines {
            rows.push(vec![
                part.part.to_owned(),
                part.name.clone(),
                state.to_owned(),
                line.to_owned(),
            ]);
        }
    }
    table(&["PART", "NAME", "STATE", "WORDS"], &rows)
}

async fn database(
    name: &str,
    config: &Config,
    routes: &Routes,
    kinds: &mut BTreeSet<String>,
) -> Result<Part, Failure> {
    let mut part = Part {
        part: "database",
        name: name.to_owned(),
        reachable: true,
        findings: Vec::new(),
        remarks: Vec::new(),
    };
    let outbox = build::outbox(name, &config.databases[name], config)?;
    let looked = async {
        let pending = target::patiently(outbox.admin.pending_sql()).await?;
        if !pending.is_empty() {
            part.findings.push(format!(
                "not migrated ({} to go): run `outboxd migrate`",
                pending.len()
            ));
            return Ok(());
        }
        let opened = target::patiently(outbox.source.open()).await?;
        part.remarks.extend(opened.remarks);
        if opened.shards != config.lease.shards {
            part.findings.push(format!(
                "the outbox has {} shards, `lease.shards` says {}: the number is fixed when the outbox is \
                 created",
                opened.shards, config.lease.shards
            ));
        }
        for kind in target::patiently(outbox.admin.pending_kinds(KINDS)).await? {
            if routes.of(&kind).is_none() {
                part.findings.push(format!(
                    "events of kind `{}` are pending and no route takes them",
                    super::output::safe(&kind)
                ));
            }
            kinds.insert(kind);
        }
        Ok::<(), SourceError>(())
    };
    if let Err(error) = looked.await {
        part.reachable = error.kind != SourceErrorKind::Unavailable;
        part.findings
            .push(within("database", name, &in_words(&error)));
    }
    outbox.source.close().await;
    Ok(part)
}

async fn sink(
    name: &str,
    config: &Config,
    routes: &Routes,
    kinds: &BTreeSet<String>,
) -> Result<Part, Failure> {
    let sink = build::sink(name, &config.sinks[name], config)?;
    let own: Vec<String> = kinds
        .iter()
        .filter(|kind| routes.to_sink(kind, name).is_some())
        .cloned()
        .collect();
    let looked = async {
        let findings = sink.check(&own).await?;
        Ok::<_, SinkError>((findings, sink.remarks().await?))
    };
    let (reachable, findings, remarks) = match tokio::time::timeout(PATIENCE, looked).await {
        Ok(Ok((findings, remarks))) => (true, findings, remarks),
        Ok(Err(error)) => (
            false,
            vec![within("sink", name, &in_words(&error))],
            Vec::new(),
        ),
        Err(_) => (
            false,
            vec![format!("no answer within {} s", PATIENCE.as_secs())],
            Vec::new(),
        ),
    };
    Ok(Part {
        part: "sink",
        name: name.to_owned(),
        reachable,
        findings,
        remarks,
    })
}
