//! Cases that meet many events in flight through one ordered lane: a lane is shared, and so must not be spoilt.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::stream::DiscardPolicy;
use outboxd::status::DatabaseState;

use super::bench::{LONG, PUBLISH_TIMEOUT, Place};
use crate::support::eventually;

/// A batch answers with a count, so an id that the stream knew before would hide in it: the count is compared with how
/// far the stream grew, and then each event is asked for.
#[tokio::test]
async fn c19_ids_that_the_stream_knew_are_counted_one_by_one() {
    const KNOWN: u32 = 30;
    let place = Place::new().await;
    let relay = place.setup().start_with(|options| {
        // Asking for each takes a round trip for each of a key.
        options.sinks[0].publish_timeout = Duration::from_millis(1_900);
        options.lease_ttl = Duration::from_secs(6);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    let id = |n: u32| format!("0199c1a0-0000-7000-8000-{n:012}");
    let jetstream = place.nats.jetstream().await;
    for n in 1..=KNOWN {
        let mut headers = HeaderMap::new();
        headers.append("Nats-Msg-Id", format!("orders:{}", id(n * 10)));
        let foreign = jetstream.publish_with_headers("evt.foreign", headers, "{\"n\":0}".into());
        foreign.await.unwrap().await.unwrap();
    }
    place
        .database
        .write(
            "insert into outbox.event (id, kind, ordering_key, payload)
             select ('0199c1a0-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'a', 'k' || n % 3,
                    json_build_object('n', n)
             from generate_series(1, 300) as n",
        )
        .await;
    place.emptied().await;
    let unexpected = [r#"expected="false""#];
    relay
        .counted("duplicates_total", &unexpected, f64::from(KNOWN))
        .await;
    assert_eq!(
        relay.metric("duplicates_total", &unexpected),
        f64::from(KNOWN)
    );
    assert_eq!(place.nats.stored("EVT").await.len(), 300);
    place.verified().await;
}

/// Want of room is no event's fault, also while others find some.
#[tokio::test]
async fn c26_a_full_stream_with_a_little_room_now_and_then_charges_nobody() {
    const KEYS: u32 = 20;
    let place = Place::with(|config| {
        config.max_messages = 3;
        config.discard = DiscardPolicy::New;
    })
    .await;
    let relay = place.relay().await;
    place.insert_keys(KEYS).await;
    for n in 2..=3 {
        for key in 1..=KEYS {
            place.insert(&format!("k{key}"), n..=n).await;
        }
    }
    let jetstream = place.nats.jetstream().await;
    let stream = jetstream.get_stream("EVT").await.unwrap();
    let pending = "select count(*) from outbox.event";
    let charged = "select count(*) from outbox.delivery where attempts > 0";
    eventually(2 * LONG, "all have found room", || async {
        // One message is taken out, one finds room.
        let first = stream.get_info().await.unwrap().state.first_sequence;
        let _ = stream.delete_message(first).await;
        assert_eq!(place.number(charged).await, 0);
        match place.number(pending).await {
            0 => Ok(()),
            pending => Err(format!("{pending} wait")),
        }
    })
    .await;
    assert_eq!(relay.metric("retried_total", &[]), 0.0);
    let all = place.heard.first_of_each();
    for key in 1..=KEYS {
        assert_eq!(all[&format!("k{key}")], [1, 2, 3]);
    }
    // Not verified: what found room is taken out again here.
}

/// Keys on a subject on which nobody answers: the first of them holds the lane up once, the later ones not at all.
#[tokio::test]
async fn c44_a_silent_subject_does_not_stop_the_lane_again_and_again() {
    let place = Place::with(|config| config.subjects = vec!["evt.good".to_owned()]).await;
    let plain = place.nats.client().await;
    let _deaf = plain.subscribe("evt.hang").await.unwrap();
    plain.flush().await.unwrap();
    let relay = place.relay().await;
    let mut slow = 0;
    for n in 1..=40 {
        if n % 4 == 0 {
            let hang = format!(
                "insert into outbox.event (kind, ordering_key, payload)
                 values ('hang', 'h{n}', '{{\"n\":1}}')"
            );
            place.database.write(&hang).await;
        }
        let written = Instant::now();
        place.insert("good", n..=n).await;
        eventually(LONG, "the healthy event is delivered", || async {
            let at = place.heard.at("good", u64::from(n));
            at.map(drop).ok_or(format!("{n} is not"))
        })
        .await;
        slow += u32::from(written.elapsed() > PUBLISH_TIMEOUT / 2);
    }
    assert!(slow <= 1, "{slow} of 40 waited for somebody else's answer");
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}
