//! `outboxd verify` on real runs: silent while everything fits, also while a relay is at work, and loud about each thing
//! that is made wrong behind its back.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};
use async_nats::jetstream::stream::Stream;
use serde_json::Value;

use super::bench::{Bench, LONG, STREAM, Written};
use crate::cli_bin::Ended;
use crate::support::roles::Role;

mod exceptions;
mod findings;
mod live;
mod size;
mod sqlite;

/// A database and a stream after this many events of each key went through.
async fn delivered(keys: &[&str], each: usize) -> (Bench, Vec<Written>) {
    let bench = Bench::new(&[]).await;
    let written = bench.insert(keys, each).await;
    deliver(&bench).await;
    (bench, written)
}

/// Delivers what is pending, and ends.
async fn deliver(bench: &Bench) {
    let running = bench.relay().await;
    bench.emptied().await;
    running.relay.shutdown().await.unwrap();
}

async fn stream(bench: &Bench) -> Stream {
    let context = bench.nats.jetstream().await;
    context.get_stream(STREAM).await.unwrap()
}

/// Runs the command with a viewer's rights.
fn verify(bench: &Bench, args: &[&str]) -> Ended {
    let url = bench.database.url_of(Role::Viewer);
    let variable = ("OUTBOXD__DATABASES__ORDERS__URL", url.as_str());
    let args = [&["verify", "--since", "1h"], args].concat();
    bench.place.outboxd_with(variable, &args)
}

/// The one feed of the JSON document.
fn feed(ended: &Ended) -> Value {
    let document = ended.json();
    assert_eq!(document["feeds"].as_array().unwrap().len(), 1, "{document}");
    document["feeds"][0].clone()
}

/// The feed, where something is wrong; and what the command says about it to people.
fn wrong(bench: &Bench) -> (Value, Ended) {
    let feed = feed(&verify(bench, &["--output", "json"]).code(3));
    assert_eq!(feed["ok"], false, "{feed}");
    (feed, verify(bench, &[]).code(3))
}

/// Everything that is counted as an error, by its name.
fn counts(feed: &Value) -> [u64; 4] {
    ["missing", "without_row", "duplicated", "out_of_order"]
        .map(|sort| feed[sort]["count"].as_u64().unwrap())
}

/// What a relay would have sent for this event, sent by hand; was it a duplicate?
async fn send(bench: &Bench, id: &str, seq: i64, key: &str) -> bool {
    let headers = headers(id, seq, key);
    let context = bench.nats.jetstream().await;
    let sent = context.publish_with_headers("events.order.made", headers, "{}".into());
    sent.await.unwrap().await.unwrap().duplicate
}

/// As a relay would have set them, as far as anybody looks at them here.
fn headers(id: &str, seq: i64, key: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("Nats-Msg-Id", format!("orders:{id}")),
        ("Outbox-Seq", seq.to_string()),
        ("Outbox-Key", key.to_owned()),
    ] {
        headers.append(
            name.parse::<HeaderName>().unwrap(),
            HeaderValue::from(value),
        );
    }
    headers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_delivered_and_settled_fits() {
    let (bench, written) = delivered(&["a", "b", "c"], 200).await;
    // What waits, and what was set aside, is counted and no error.
    bench.insert(&["d"], 7).await;
    bench
        .database
        .write(
            "insert into outbox.event (kind, ordering_key, payload, headers)
             values ('order.made', 'e', '{}', '{\"Nats-Rollup\": \"all\"}')",
        )
        .await;
    let ended = verify(&bench, &["--output", "json"]).code(0);
    let found = feed(&ended);
    assert_eq!(ended.json()["ok"], true);
    let numbers = ["delivered", "held", "pending", "in_flight", "unjudged"];
    let numbers = numbers.map(|name| found[name].as_u64().unwrap());
    assert_eq!(
        numbers,
        [written.len() as u64, written.len() as u64, 8, 0, 0]
    );
    deliver(&bench).await;
    let ended = verify(&bench, &[]).code(0);
    let line = ended.stdout.lines().nth(1).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    let expected = [
        "orders", "->", "events", "607", "607", "0", "1", "0", "0", "0", "0", "0",
    ];
    assert_eq!(cells, expected, "{ended:?}");
    assert!(ended.stderr.contains("everything fits"), "{ended:?}");
    // Only what was asked for, and of that only what lies in the window.
    let none = verify(
        &bench,
        &["--until", "30m", "--sink", "events", "--output", "json"],
    )
    .code(0);
    assert_eq!(feed(&none)["delivered"], 0);
    let info = stream(&bench).await.cached_info().clone();
    assert_eq!(info.state.consumer_count, 0, "no consumer is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_for_wrongly_or_cannot_be_reached_has_its_own_code() {
    let (mut bench, _) = delivered(&["a"], 1).await;
    for (args, words) in [
        (&["--until", "2h"][..], "the window is empty"),
        (
            &["--sink", "hooks"],
            "there is no sink `hooks`; there is events",
        ),
        (&["--database", "other"], "there is no database `other`"),
        (&["--until", "soon"], "such as 90m or 7d, or a moment"),
    ] {
        let ended = verify(&bench, args).code(2);
        assert!(ended.stderr.contains(words), "{args:?}: {ended:?}");
    }
    bench.nats.stop().await;
    let ended = verify(&bench, &["--output", "json"]).code(5);
    assert!(ended.stderr.contains("error: sink events: "), "{ended:?}");
    let found = feed(&ended);
    assert_eq!(found["ok"], false);
    assert!(
        found["error"].as_str().unwrap().contains("connect"),
        "{found}"
    );
    let nobody = (
        "OUTBOXD__DATABASES__ORDERS__URL",
        "postgres://x@127.0.0.1:1/x",
    );
    let ended = bench.place.outboxd_with(nobody, &["verify"]).code(4);
    assert!(
        ended.stderr.contains("error: database orders: "),
        "{ended:?}"
    );
    // A writer sees nothing of the history, and is told which right it lacks.
    let writer = bench.database.url_of(Role::Writer);
    let writer = ("OUTBOXD__DATABASES__ORDERS__URL", writer.as_str());
    let ended = bench.place.outboxd_with(writer, &["verify"]).code(1);
    assert!(ended.stderr.contains("permission denied for"), "{ended:?}");
}

/// Waits until a message that has this id already is stored once more: until the stream has forgotten the id.
async fn sent_again(bench: &Bench, id: &str, seq: i64, key: &str) {
    crate::support::eventually(LONG, "the stream has forgotten the id", || async {
        match send(bench, id, seq, key).await {
            false => Ok(()),
            true => Err("a duplicate".to_owned()),
        }
    })
    .await;
}
