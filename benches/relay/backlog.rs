//! A backlog delivered end to end.

use std::sync::Arc;
use std::time::Duration;

use outboxd::relay;
use outboxd::sink::PublishError;
use outboxd::sink::file::{self, File};
use outboxd::sink::memory::{Answer, Memory};
use outboxd::source::admin::{Admin, NewEvent};
use outboxd::source::sqlite::{self, Sqlite};
use outboxd::source::{PublishedKeep, Source};

use crate::cpu::{Cost, Meter, Watched};
use crate::stage::{Keys, Stage, options, options_to};

/// Far more than any of these takes.
const LONG: Duration = Duration::from_secs(600);

/// PostgreSQL to JetStream, from the start of the relay until everything is published and settled.
pub async fn to_stream(stage: &Stage, events: u32, keys: Keys, keep: PublishedKeep) -> Cost {
    let outbox = stage.outbox(keep, events, keys).await;
    let stream = stage.stream().await;
    let meter = Meter::start(stage.watched());
    let relay = relay::start(options(outbox.source(), stage.sink(), keep))
        .await
        .unwrap();
    tokio::time::timeout(LONG, relay.drained()).await.unwrap();
    let cost = meter.stop();
    relay.shutdown().await.unwrap();
    let state = stream.get_info().await.unwrap().state;
    assert_eq!(state.messages, u64::from(events), "each event once");
    assert_eq!(outbox.pending().await, 0);
    cost
}

/// PostgreSQL to two sinks that take everything at once, beside a third that is not there or refuses everything;
/// until both have all.
pub async fn beside(stage: &Stage, events: u32, third: bool) -> Cost {
    let outbox = stage
        .outbox(PublishedKeep::Full, events, Keys::Over(500))
        .await;
    let live = [Memory::new(), Memory::new()];
    let refusing = Memory::new();
    refusing.on(|_| Some(Answer::Fail(PublishError::unavailable("full"))));
    let mut sinks = vec![("first", live[0].clone()), ("second", live[1].clone())];
    if third {
        sinks.push(("third", refusing));
    }
    let options = options_to(outbox.source(), sinks, PublishedKeep::Full);
    let meter = Meter::start(stage.watched());
    let relay = relay::start(options).await.unwrap();
    for sink in &live {
        sink.wait_for(events as usize, LONG).await.unwrap();
    }
    let cost = meter.stop();
    relay.shutdown().await.unwrap();
    cost
}

/// SQLite to a file of JSON lines, on the disk of the temporary directory.
pub async fn to_file(events: u32) -> Cost {
    let directory = tempfile::tempdir().unwrap();
    let source = Arc::new(
        Sqlite::new(sqlite::Options {
            name: "orders".into(),
            path: directory.path().join("orders.db"),
            keep: PublishedKeep::Full,
            shards: 16,
            statement_timeout: Duration::from_secs(30),
        })
        .unwrap(),
    );
    source.migrate().await.unwrap();
    for first in (0..events).step_by(1_000) {
        let batch: Vec<NewEvent> = (first..events.min(first + 1_000)).map(event).collect();
        source.publish(&batch).await.unwrap();
    }
    let path = directory.path().join("events.jsonl");
    let sink = Arc::new(File::new(file::Options { path: path.clone() }));
    let meter = Meter::start(Watched::default());
    let relay = relay::start(options(
        Arc::clone(&source) as Arc<dyn Source>,
        sink,
        PublishedKeep::Full,
    ))
    .await
    .unwrap();
    tokio::time::timeout(LONG, relay.drained()).await.unwrap();
    let cost = meter.stop();
    relay.shutdown().await.unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(text.lines().count(), events as usize, "each event once");
    cost
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
