//! What operators see: no flood, no explosion, no lost trace.

use std::sync::Arc;
use std::time::Duration;

use outboxd::relay::Options;
use outboxd::sink::PublishError;
use outboxd::sink::memory::{Answer, Memory};

use super::bench::{LONG, Place, emptied};
use crate::cli_bin::Workplace;
use crate::support::eventually;
use crate::support::postgres;
use crate::support::proxy::{Mode, Proxy};

/// Headers go out as they were stored; nothing reads them on the way but the log.
#[tokio::test]
async fn c94_the_writers_trace_context_arrives_as_it_was_stored() {
    let place = Place::new().await;
    let _running = place.relay().await;
    let long = "0".repeat(1_000);
    let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let written: [(&str, &str); 4] = [
        ("traceparent", valid),
        ("traceparent", "garbage"),
        ("traceparent", &long),
        ("tracestate", "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"),
    ];
    for (name, value) in written {
        place
            .database
            .execute(&format!(
                "insert into outbox.event (kind, ordering_key, payload, headers)
                 values ('a', 'k', '{{\"n\":1}}', jsonb_build_object('{name}', '{value}', 'baggage', 'a=b'))"
            ))
            .await;
    }
    // Another key may overtake what is on its way.
    place.stored(written.len()).await;
    place.insert("absent", 1..=1).await;
    let stored = place.stored(5).await;
    for (message, (name, value)) in stored.iter().zip(written) {
        assert_eq!(message.header(name), Some(value));
        assert_eq!(message.header("baggage"), Some("a=b"));
    }
    assert_eq!(stored[4].header("traceparent"), None, "none is made up");
    assert_eq!(
        place.number("select count(*) from outbox.discarded").await,
        0
    );
    place.verified().await;
}

/// Labels are names from the configuration and words of closed sets: the number of series has nothing to do with
/// what is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c95_ten_thousand_keys_and_errors_make_no_more_series() {
    let place = Place::new().await;
    let sink = Memory::new();
    sink.on(|delivery| {
        let seq = delivery.event.seq;
        (seq % 10 == 0).then(|| {
            let words = format!("no room for number {seq}");
            Answer::Fail(match seq % 20 {
                0 => PublishError::rejected("too_large", words),
                _ => PublishError::retryable(words),
            })
        })
    });
    let to_memory = sink.clone();
    let in_memory = move |options: &mut Options| {
        options.sinks[0].sink = Arc::new(to_memory);
    };
    let running = place.setup().start_with(in_memory).await;
    place
        .database
        .execute(
            "insert into outbox.event (kind, ordering_key, payload)
             select 'kind.' || n, 'key-' || n, json_build_object('n', n) from generate_series(1, 10000) as n",
        )
        .await;
    running.counted("published_total", &[], 9_000.0).await;
    running.counted("retried_total", &[], 500.0).await;
    running.counted("discarded_total", &[], 500.0).await;
    let text = running.text();
    let mut series = std::collections::BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        *series.entry(name).or_insert(0) += 1;
    }
    assert!(series.values().all(|count| *count < 100), "{series:?}");
    for word in ["key-", "kind.", "no room", "overflow"] {
        assert!(!text.contains(word), "{word} in\n{text}");
    }
    place.verified().await;
}

/// A change of state is a line; an event that waits, or a failed attempt to reconnect, is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c97_an_outage_is_a_few_lines_however_many_events_wait() {
    const OUTAGE: Duration = Duration::from_secs(8);
    let place = Place::new().await;
    let broker = Proxy::to(place.nats.address()).await;
    let database = Proxy::to(postgres::server().await.address()).await;
    let work = Workplace::new(&place.config(
        &place.database.url_through(database.address().port()),
        &format!("nats://{}", broker.address()),
        "",
    ));
    let service = work.start(&["run"]);
    place.insert("warm", 1..=1).await;
    place.heard.wait_for(1).await;
    emptied(&place.database).await;
    let lines = || service.output().lines().count();
    let before = lines();
    for network in [&broker, &database] {
        network.set(Mode::Cut);
        place.insert_keys(1_000).await;
        // The length of the outage is what this is about.
        tokio::time::sleep(OUTAGE).await;
        network.set(Mode::Pass);
        emptied(&place.database).await;
    }
    let spoken = lines() - before;
    assert!(
        spoken > 0 && spoken <= 30,
        "{spoken} lines\n{}",
        service.output()
    );
    let output = service.output();
    for words in [
        "sink takes no events",
        "sink takes events",
        "database cannot be read",
    ] {
        assert!(output.contains(words), "{words} in\n{output}");
    }
    // Idle is silent.
    let before = eventually(LONG, "the program has said everything", || async {
        let now = lines();
        // Time itself is the subject.
        tokio::time::sleep(Duration::from_secs(1)).await;
        (lines() == now).then_some(now).ok_or(String::new())
    })
    .await;
    // An idle while, some renewals and samples long.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(lines(), before, "{}", service.output());
    place.verified().await;
}
