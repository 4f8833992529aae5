//! Ordering keys: long ones, similar ones, none.

use std::time::Duration;

use outboxd::status::DatabaseState;

use super::super::bench::{Place, by_key};
use crate::support::proxy::{Mode, Proxy};

/// A key is at most 512 bytes, checked where it is written; in the message it is one token, and no two are alike.
#[tokio::test]
async fn c67_long_and_similar_keys_stay_apart_and_too_long_ones_are_refused_to_their_writer() {
    let place = Place::new().await;
    let mut setup = place.setup();
    setup.sink.subject = "evt.{ordering_key}.{kind}".to_owned();
    let relay = setup.start().await;
    let mut writer = place.database.writer().await;
    for key in [
        "x".repeat(513),
        "é".repeat(257),
        "0123456789abcdef".repeat(400),
        String::new(),
    ] {
        let error = sqlx::query(
            "insert into outbox.event (kind, ordering_key, payload) values ('a', $1, '1')",
        )
        .bind(&key)
        .execute(&mut writer)
        .await
        .unwrap_err();
        let words = error.to_string();
        assert!(words.contains("event_ordering_key_check"), "{words}");
    }
    let keys: Vec<String> = [
        "a/b",
        "a%2Fb",
        "a%2fb",
        "A/B",
        "a.b",
        "a b",
        "_",
        "%5F",
        "a\u{0301}",
        "á",
        "*",
        ">",
        "$",
        "a\nb",
        "a\tb",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain(["x".repeat(512), "x".repeat(511)])
    .collect();
    for n in 1..=3 {
        for key in &keys {
            sqlx::query("insert into outbox.event (kind, ordering_key, payload) values ('a', $1, json_build_object('n', $2))")
                .bind(key)
                .bind(n)
                .execute(&mut writer)
                .await
                .unwrap();
        }
    }
    let all = place.stored(3 * keys.len()).await;
    place.emptied().await;
    let seen = by_key(all.iter().map(|m| (&m.headers, &m.payload)));
    assert_eq!(seen.len(), keys.len(), "{:?}", seen.keys());
    assert!(seen.values().all(|seen| *seen == [1, 2, 3]), "{seen:?}");
    let mut subjects: Vec<&str> = all.iter().map(|m| m.subject.as_str()).collect();
    subjects.sort_unstable();
    subjects.dedup();
    assert_eq!(subjects.len(), keys.len());
    assert_eq!(relay.metric("discarded_total", &[]), 0.0);
    // Escaped it is three times as long, and longer than a subject may be: set aside, and its key goes on.
    let long =
        "insert into outbox.event (kind, ordering_key, payload) values ('a', $1, '{\"n\":1}')";
    for key in ["é".repeat(256), "b".to_owned()] {
        let query = sqlx::query(long).bind(key);
        query.execute(&mut writer).await.unwrap();
    }
    place.stored(all.len() + 1).await;
    place.emptied().await;
    let code = "select string_agg(code, ',') from outbox.discarded";
    assert_eq!(place.text(code).await, "invalid_subject");
    place.verified().await;
}

/// No key means no order: nothing waits for anything.
#[tokio::test]
async fn c68_rows_without_a_key_go_side_by_side_and_an_empty_key_is_refused() {
    let place = Place::new().await;
    let network = Proxy::to(place.nats.address()).await;
    let relay = place
        .setup()
        .broker(format!("nats://{}", network.address()));
    let relay = relay.start().await;
    relay.is(DatabaseState::Active).await;
    network.set(Mode::Lag(Duration::from_millis(50)));
    let began = tokio::time::Instant::now();
    place
        .database
        .write(
            "insert into outbox.event (kind, payload)
             select 'a', json_build_object('n', n) from generate_series(1, 100) as n",
        )
        .await;
    let all = place.stored(100).await;
    // One after the other they would take ten seconds.
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert!(all.iter().all(|m| m.header("Outbox-Key").is_none()));
    place.emptied().await;
    let mut writer = place.database.writer().await;
    let empty = "insert into outbox.event (kind, ordering_key, payload) values ('a', '', '1')";
    let error = sqlx::query(empty).execute(&mut writer).await.unwrap_err();
    assert!(
        error.to_string().contains("event_ordering_key_check"),
        "{error}"
    );
    assert_eq!(relay.metric("restarts_total", &[]), 0.0);
    place.verified().await;
}
