//! `outboxd verify`: does each sink hold what the databases delivered to it?

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::failure::{Code, Failure, about, in_words, within};
use super::output::{Output, safe, say, table};
use super::{Global, target};
use crate::config::{Config, build};
use crate::event::Timestamp;
use crate::relay::GapGuard;
use crate::source::trail::Window;
use crate::verify::{self, Error, Feed, Finding, MOST_EVENTS, Offender, Report};

#[derive(Debug, Args)]
#[command(after_help = "\
It reads the outbox with its history, and what the sink holds, of a window of time, and tells what does not fit:
  missing        delivered by the database's word, and not in the sink
  without a row  in the sink under a message id of this database, which knows nothing of it
  duplicated     in the sink more than once
  out of order   in the sink, for the first time, behind a later event of its key
What a sink has let go by its own limits, what waits, what is on its way and what an operator put back is counted and
is no error. It changes nothing, may run while events are delivered, and needs a viewer's rights at the database and
those of a reader at the stream. Exit code 3: something is wrong; the first twenty of each sort are named.

Examples:
  outboxd verify                                    the last 24 hours, everything
  outboxd verify --since 7d --sink events
  outboxd verify --since 2026-11-30T00:00:00Z --until 2026-12-01T00:00:00Z --output json

A window may hold 20,000,000 events, for some 60 bytes of memory each (150 where the database knows few of them).")]
pub(super) struct VerifyArgs {
    /// Only this database (a name from the configuration).
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// Only this sink (a name from the configuration).
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// From this time on: so long ago, such as 90m or 7d, or a moment, such as 2026-11-30T08:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "24h")]
    since: Time,
    /// Up to this time, written in the same way. Without it: now.
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Time>,
}

/// A point in time at the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Time {
    Ago(Duration),
    At(Timestamp),
}

impl Time {
    fn before(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Ago(span) => {
                let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
                Timestamp(now.0.saturating_sub(micros))
            }
            Self::At(moment) => moment,
        }
    }
}

fn time(text: &str) -> Result<Time, String> {
    if let Some(moment) = Timestamp::parse(text) {
        return Ok(Time::At(moment));
    }
    super::publish::delay(text).map(Time::Ago).map_err(|_| {
        "expected so long ago, such as 90m or 7d, or a moment, such as 2026-11-30T08:00:00Z"
            .to_owned()
    })
}

#[derive(Debug, Serialize)]
struct Document {
    /// Nothing is wrong, and everything could be read.
    ok: bool,
    since: String,
    until: String,
    feeds: Vec<Outcome>,
}

/// A report, or why there is none.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Compared(Box<Report>),
    Failed {
        database: String,
        sink: String,
        ok: bool,
        error: String,
    },
}

pub(super) async fn run(global: &Global, args: &VerifyArgs, out: &Output) -> Result<(), Failure> {
    let loaded = global.load_for_command()?;
    let config = &loaded.config;
    let window = window(args, Timestamp::now())?;
    let targets = target::all(config, args.database.as_deref())?;
    let sinks = sinks(config, args.sink.as_deref())?;
    let routes = build::routes(config);
    let mut worst: Option<Code> = None;
    let mut feeds = Vec::new();
    for target in &targets {
        for (name, sink) in &sinks {
            let feed = Feed {
                database: &target.name,
                admin: &*target.admin,
                name,
                sink: &**sink,
                routes: &routes,
                window,
                keep: config.retention.published_keep,
                retention: config.retention.published.0,
                most: MOST_EVENTS,
            };
            let (outcome, code) = compare(&feed).await;
            worst = graver(worst, code);
            feeds.push(outcome);
        }
    }
    if feeds.is_empty() {
        return Err(Failure::usage(
            "no sink is configured: there is nothing to compare with",
        ));
    }
    let document = Document {
        ok: worst.is_none(),
        since: window.since.to_string(),
        until: window.until.to_string(),
        feeds,
    };
    out.write(&document, words)?;
    tell(&document, config);
    worst.map_or(Ok(()), |code| Err(Failure::said(code)))
}

/// A database that cannot be read goes before a sink, and both before what was found; a window that is too large is the
/// caller's to mend.
fn graver(worst: Option<Code>, code: Option<Code>) -> Option<Code> {
    let rank = |code: Code| match code {
        Code::Usage => 4,
        Code::Failed => 3,
        Code::Database => 2,
        Code::Sink => 1,
        Code::Finding => 0,
    };
    match (worst, code) {
        (Some(worst), Some(code)) if rank(code) <= rank(worst) => Some(worst),
        (worst, code) => code.or(worst),
    }
}

fn window(args: &VerifyArgs, now: Timestamp) -> Result<Window, Failure> {
    let window = Window {
        since: args.since.before(now),
        until: args.until.map_or(now, |until| until.before(now)),
    };
    if window.since >= window.until {
        return Err(Failure::usage(format!(
            "the window is empty: it begins at {} and ends at {}",
            window.since, window.until
        )));
    }
    Ok(window)
}

type Sinks = Vec<(String, std::sync::Arc<dyn crate::sink::Sink>)>;

/// The sink named by `--sink`, or all.
fn sinks(config: &Config, name: Option<&str>) -> Result<Sinks, Failure> {
    super::keys::known_sink(config, name)?;
    let chosen = config
        .sinks
        .iter()
        .filter(|(known, _)| name.is_none_or(|name| name == known.as_str()));
    chosen
        .map(|(name, sink)| Ok((name.clone(), build::sink(name, sink, config)?)))
        .collect()
}

async fn compare(feed: &Feed<'_>) -> (Outcome, Option<Code>) {
    let failed = |part: &str, name: &str, error: &(dyn std::error::Error + 'static)| {
        let words = in_words(error);
        say(format_args!("error: {}", about(part, name, &words)));
        Outcome::Failed {
            database: feed.database.to_owned(),
            sink: feed.name.to_owned(),
            ok: false,
            error: within(part, name, &words),
        }
    };
    match verify::feed(feed).await {
        Ok(report) => {
            let code = (!report.ok).then_some(Code::Finding);
            (Outcome::Compared(Box::new(report)), code)
        }
        Err(Error::Source(error)) => {
            let code = Code::of(&error);
            (failed("database", feed.database, &error), Some(code))
        }
        Err(Error::Sink(error)) => (failed("sink", feed.name, &error), Some(Code::Sink)),
        Err(error) => (failed("database", feed.database, &error), Some(Code::Usage)),
    }
}

fn reports(document: &Document) -> impl Iterator<Item = &Report> {
    document.feeds.iter().filter_map(|outcome| match outcome {
        Outcome::Compared(report) => Some(&**report),
        Outcome::Failed { .. } => None,
    })
}

fn name_of(report: &Report) -> String {
    format!("{} -> {}", report.database, report.sink)
}

/// Numbers of every feed, and below them who is not as it should be.
fn words(document: &Document) -> String {
    let feeds: Vec<Vec<String>> = reports(document).map(numbers).collect();
    if feeds.is_empty() {
        return String::new();
    }
    let head = [
        "FEED",
        "DELIVERED",
        "HELD",
        "PENDING",
        "DISCARDED",
        "AGED OUT",
        "MISSING",
        "WITHOUT A ROW",
        "DUPLICATED",
        "OUT OF ORDER",
    ];
    let mut text = table(&head, &feeds);
    let mut rows = Vec::new();
    for report in reports(document) {
        for (sort, found) in report.findings() {
            let offenders = found.first.iter();
            rows.extend(offenders.map(|offender| row(report, sort, offender)));
        }
    }
    if !rows.is_empty() {
        let head = ["FEED", "FINDING", "SEQ", "POSITION", "ID", "KEY", "WORDS"];
        text.push('\n');
        text.push_str(&table(&head, &rows));
    }
    text
}

fn numbers(report: &Report) -> Vec<String> {
    let count = |found: &Finding| match found.not_checked {
        Some(_) => "not checked".to_owned(),
        None => found.count.to_string(),
    };
    let held = match report.read_back {
        true => report.held.to_string(),
        false => "?".to_owned(),
    };
    let mut row = vec![
        name_of(report),
        report.delivered.to_string(),
        held,
        report.pending.to_string(),
        report.discarded.to_string(),
        report.aged_out.to_string(),
    ];
    row.extend(report.findings().map(|(_, found)| count(found)));
    row
}

fn row(report: &Report, sort: &str, offender: &Offender) -> Vec<String> {
    let number = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    vec![
        name_of(report),
        sort.to_owned(),
        number(offender.seq.map(|seq| seq.to_string())),
        number(offender.position.map(|position| position.to_string())),
        offender.id.to_string(),
        safe(offender.key.as_deref().unwrap_or("-")),
        safe(&offender.why),
    ]
}

/// What the numbers mean.
fn tell(document: &Document, config: &Config) {
    for report in reports(document) {
        let name = name_of(report);
        for remark in &report.remarks {
            say(format_args!("{name}: {}", safe(remark)));
        }
        for (sort, found) in report.findings() {
            match &found.not_checked {
                Some(why) if report.read_back => {
                    say(format_args!("{name}: {sort}: not checked: {}", safe(why)));
                }
                None if found.count > 0 => {
                    let (count, meaning) = (found.count, meaning(sort));
                    say(format_args!("{name}: {count} {sort}: {meaning}"));
                }
                Some(_) | None => {}
            }
        }
        let off = |database: &crate::config::Database| database.gap_guard == GapGuard::Off;
        if report.out_of_order.count > 0 && config.databases.get(&report.database).is_some_and(off)
        {
            say(format_args!(
                "{name}: with gap_guard = \"off\", writers of one key that commit the other way round look like this"
            ));
        }
        if report.ok && report.read_back {
            say(format_args!("{name}: everything fits"));
        }
    }
}

fn meaning(sort: &str) -> &'static str {
    match sort {
        "missing" => "delivered by the database's word, and not in the sink",
        "without a row" => "in the sink, and unknown to the database",
        "duplicated" => "copies of messages that the sink holds already",
        _ => "for the first time behind a later event of their key",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn times_are_lengths_or_moments() {
        let now = Timestamp(1_700_000_000_000_000);
        let before = |text| time(text).map(|time| time.before(now).0);
        assert_eq!(before("1h").unwrap(), now.0 - 3_600_000_000);
        assert_eq!(before("2023-11-14T22:13:20Z").unwrap(), now.0);
        assert!(before("yesterday").is_err() && before("24").is_err());
    }

    #[test]
    fn the_gravest_code_wins() {
        use Code::{Database, Finding, Sink};
        assert_eq!(graver(Some(Sink), Some(Database)), Some(Database));
        assert_eq!(graver(Some(Sink), Some(Finding)), Some(Sink));
        assert_eq!(graver(None, Some(Finding)), Some(Finding));
        assert_eq!(graver(Some(Finding), None), Some(Finding));
    }
}
