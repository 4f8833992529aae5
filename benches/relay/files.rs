//! A backlog in SQLite delivered to a file of JSON lines, on the disk of the temporary directory.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outboxd::source::admin::{Admin, NewEvent};
use outboxd::source::sqlite::{self, Sqlite};
use outboxd::source::{PublishedKeep, Source};
use serde_json::Value as Json;

use crate::cpu::{Meter, Watched};
use crate::measurement::{Column, Figures, Group, Line, OTHERS, PEAK, RATE, RELAY};
use crate::process::{From, Process, Relayed, To};
use crate::sitting::Sitting;

pub fn group() -> Group {
    let lines = [
        ("SQLite to a file, 10,000 keys", PublishedKeep::Full),
        ("SQLite to a file, nothing kept", PublishedKeep::None),
    ]
    .map(|(name, keep)| Line::new(name, &[], move |sitting| Box::pin(drain(sitting, keep))));
    Group {
        name: "sqlite",
        lines: lines.into(),
        columns: vec![
            Column::of(RATE, 0),
            Column::of(RELAY, 1),
            Column::of(PEAK, 0),
            Column::of(OTHERS, 0),
        ],
        goals: Vec::new(),
    }
}

async fn drain(sitting: &Sitting, keep: PublishedKeep) -> Figures {
    let events = sitting.arguments.events;
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("orders.db");
    let source = Sqlite::new(sqlite::Options {
        name: "orders".into(),
        path: database.clone(),
        keep,
        shards: 16,
        statement_timeout: Duration::from_secs(30),
    })
    .unwrap();
    source.migrate().await.unwrap();
    for first in (0..events).step_by(1_000) {
        let batch: Vec<NewEvent> = (first..events.min(first + 1_000)).map(event).collect();
        source.publish(&batch).await.unwrap();
    }
    source.close().await;
    let path = directory.path().join("events.jsonl");
    let relayed = Relayed {
        from: From::Sqlite {
            path: database.display().to_string(),
        },
        to: To::File {
            path: path.display().to_string(),
        },
        keep,
        poison: false,
        count: false,
    };
    let mut relay = Process::ready(&relayed).await;
    let meter = Meter::start(Watched {
        relay: Some(relay.id()),
        ..Watched::default()
    });
    relay.ask("start").await;
    relay.ask("drained").await;
    let cost = meter.stop();
    let (peak, _) = relay.memory();
    relay.stop().await;
    let text = std::fs::read_to_string(path).unwrap();
    sitting.audited(events.into(), findings(&text, events));
    let figures = cost.figures(events);
    Figures::default()
        .with(RATE, figures.get(RATE).unwrap())
        .with(RELAY, figures.get(RELAY).unwrap())
        .with(PEAK, peak)
        .with(OTHERS, figures.get(OTHERS).unwrap())
}

/// Each event once, and each key in its order.
fn findings(text: &str, events: u32) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut last: HashMap<String, i64> = HashMap::new();
    let (mut lines, mut out_of_order) = (0, 0);
    for line in text.lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        let seq = line["seq"].as_i64().unwrap();
        lines += 1;
        seen.insert(seq);
        let key = line["ordering_key"].as_str().unwrap().to_owned();
        if last.insert(key, seq).is_some_and(|before| before >= seq) {
            out_of_order += 1;
        }
    }
    let mut findings = Vec::new();
    if seen.len() != events as usize || lines != events {
        findings.push(format!(
            "{lines} lines with {} events of {events}",
            seen.len()
        ));
    }
    if out_of_order > 0 {
        findings.push(format!(
            "{out_of_order} lines before an earlier one of their key"
        ));
    }
    findings
}

fn event(n: u32) -> NewEvent {
    let payload = format!(r#"{{"n":{n},"x":"{}"}}"#, "y".repeat(1_000));
    NewEvent {
        kind: "order.changed".into(),
        payload: Some(serde_json::value::RawValue::from_string(payload).unwrap()),
        payload_bytes: None,
        content_type: None,
        ordering_key: Some(format!("k{}", n.wrapping_mul(2_654_435_761) % 10_000)),
        headers: [("request_id".to_owned(), format!("r-{n}"))].into(),
        delay: None,
        id: None,
    }
}
