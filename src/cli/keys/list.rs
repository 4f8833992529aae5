//! `outboxd keys list`.

use serde_json::{Value, json};

use super::place::{due, event, pauses_of, since, word};
use super::{Database, KeyName, ListArgs, build, pasteable, patiently, refused};
use crate::cli::failure::Failure;
use crate::cli::output::{Output, safe, say, table};
use crate::config::Config;
use crate::source::Pause;
use crate::source::pause::Target;
use crate::source::waiting::{KeyEvent, MAX_BEHIND, Waiting};

/// One line.
struct Line {
    state: &'static str,
    key: KeyName,
    sink: Option<String>,
    event: Option<KeyEvent>,
    behind: u64,
    pause: Option<Pause>,
}

pub(super) async fn list(
    config: &Config,
    database: &Database,
    args: &ListArgs,
    out: &Output,
) -> Result<(), Failure> {
    let failed = |error| refused(database, &error);
    let pauses = patiently(database.admin.pauses()).await.map_err(failed)?;
    let waiting = patiently(database.admin.waiting(args.sink.as_deref(), args.limit))
        .await
        .map_err(failed)?;
    let mut lines: Vec<Line> = pauses
        .iter()
        .filter_map(|pause| paused(pause, args.sink.as_deref()))
        .collect();
    let routes = build::routes(config);
    lines.extend(waiting.into_iter().map(|waiting| {
        let route = routes.of(&waiting.event.kind).map(|route| &*route.name);
        line(waiting, &pauses, route)
    }));
    // Pauses come first: an operator made them, and may have forgotten them.
    let more = lines.len() > args.limit as usize;
    lines.truncate(args.limit as usize);
    if more {
        say(format_args!(
            "there are more: raise --limit (now {})",
            args.limit
        ));
    }
    for pause in &pauses {
        if !matches!(pause.target, Target::Key { .. }) {
            say(format_args!("{}", safe(&pause.to_string())));
        }
    }
    let document: Vec<Value> = lines.iter().map(in_json).collect();
    out.write(&document, |_| {
        let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
        table(
            &[
                "STATE", "SINK", "SEQ", "KIND", "ATTEMPTS", "SINCE", "DUE", "BEHIND", "KEY",
                "WORDS",
            ],
            &rows,
        )
    })
}

fn paused(pause: &Pause, of: Option<&str>) -> Option<Line> {
    let Target::Key { name, sink } = &pause.target else {
        return None;
    };
    if let (Some(of), Some(sink)) = (of, sink)
        && of != sink
    {
        return None;
    }
    Some(Line {
        state: "paused",
        key: KeyName::Named(name.clone()),
        sink: sink.clone(),
        event: None,
        behind: 0,
        pause: Some(pause.clone()),
    })
}

fn line(waiting: Waiting, pauses: &[Pause], route: Option<&str>) -> Line {
    let Waiting {
        sink,
        event,
        behind,
    } = waiting;
    let key = match &event.ordering_key {
        Some(key) => KeyName::Named(key.clone()),
        None => KeyName::Alone(event.seq),
    };
    let held = pauses_of(pauses, sink.as_deref().unwrap_or_default(), route, &key);
    Line {
        state: word(event.waits_for()),
        key,
        sink,
        event: Some(event),
        behind,
        pause: held.into_iter().next(),
    }
}

fn in_json(line: &Line) -> Value {
    let (key, seq) = match &line.key {
        KeyName::Named(key) => (Some(key), None),
        KeyName::Alone(seq) => (None, Some(seq)),
    };
    json!({
        "state": line.state,
        "key": key,
        "seq": seq,
        "sink": line.sink,
        "since": since_of(line),
        "event": line.event.as_ref().map(event),
        "behind": line.behind,
        "behind_bounded": line.behind >= u64::from(MAX_BEHIND),
        "pause": line.pause,
    })
}

fn since_of(line: &Line) -> Option<String> {
    match (&line.pause, &line.event) {
        (Some(pause), _) => Some(pause.since.clone()),
        (None, event) => event.as_ref().map(since),
    }
}

fn row(line: &Line) -> Vec<String> {
    let of = |pick: &dyn Fn(&KeyEvent) -> String| line.event.as_ref().map_or("-".to_owned(), pick);
    let more = if line.behind >= u64::from(MAX_BEHIND) {
        "+"
    } else {
        ""
    };
    let words = match (&line.pause, &line.event) {
        (Some(pause), _) => pause.to_string(),
        (None, Some(event)) => event
            .skip
            .clone()
            .or_else(|| event.last_error.clone())
            .unwrap_or_default(),
        (None, None) => String::new(),
    };
    vec![
        line.state.to_owned(),
        line.sink.clone().unwrap_or_else(|| "all".to_owned()),
        of(&|event| event.seq.to_string()),
        of(&|event| safe(&event.kind)),
        of(&|event| event.attempts.to_string()),
        since_of(line).unwrap_or_else(|| "-".to_owned()),
        of(&|event| due(event).unwrap_or_else(|| "-".to_owned())),
        format!("{}{more}", line.behind),
        pasteable(&line.key),
        safe(&words),
    ]
}
