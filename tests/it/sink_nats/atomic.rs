//! Atomic batches: long runs go as one, and what one batch cannot hold goes singly, in order all the same.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, Stream};
use bytes::Bytes;
use outboxd::event::Payload;
use outboxd::sink::nats::Nats;
use outboxd::sink::{Delivery, PublishErrorKind};
use outboxd::testing::sink::{delivery, delivery_of};

use super::bench::{
    PERMISSIONS, SOON, UNAVAILABLE, admin, as_user, atomic, config, create, kind, open, rejected,
};
use super::lane::{Results, events, places, publish};
use crate::support::nats;
use crate::support::proxy::{Mode, Proxy};

/// Messages of the stream for each batch, by its id; those without one are under none.
async fn batches(stream: &Stream) -> HashMap<Option<String>, u64> {
    let state = stream.get_info().await.unwrap().state;
    let mut found = HashMap::new();
    for place in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(place).await.unwrap();
        let id = message.headers.get("Nats-Batch-Id");
        *found.entry(id.map(ToString::to_string)).or_default() += 1;
    }
    found
}

/// Every answer is `Ok` and names the place of its event.
async fn all_in_place(stream: &Stream, batch: &[Delivery], results: &Results) {
    let places = places(stream).await;
    let mut named = BTreeSet::new();
    for (delivery, result) in batch.iter().zip(results) {
        let receipt = result.as_ref().unwrap();
        let place = receipt.position.unwrap();
        assert_eq!(places.get(&place), Some(&delivery.event.id));
        assert_eq!(receipt.stream.as_deref(), Some("EVT"));
        assert!(named.insert(place));
    }
    assert_eq!(places.len(), batch.len(), "each once");
}

#[tokio::test]
async fn a_long_run_of_one_key_is_one_batch() {
    let server = nats::Server::start().await;
    let stream = create(&server, atomic()).await;
    let session = open(server.url()).await;
    let batch = events(1, 300, 1);
    let results = publish(&session, &batch).await;
    all_in_place(&stream, &batch, &results).await;
    let batches = batches(&stream).await;
    assert!(
        batches.len() == 1 && !batches.contains_key(&None),
        "{batches:?}"
    );
}

#[tokio::test]
async fn a_short_run_is_no_batch() {
    let server = nats::Server::start().await;
    let stream = create(&server, atomic()).await;
    let session = open(server.url()).await;
    let batch = events(1, 50, 3);
    let results = publish(&session, &batch).await;
    all_in_place(&stream, &batch, &results).await;
    assert_eq!(batches(&stream).await, HashMap::from([(None, 50)]));
}

#[tokio::test]
async fn what_the_stream_knows_is_no_reason_to_store_anything_twice() {
    let server = nats::Server::start().await;
    let stream = create(&server, atomic()).await;
    let session = open(server.url()).await;
    let batch = events(1, 300, 3);
    // The first of each key: what a lost answer leaves.
    for delivery in &batch[..3] {
        session.publish(delivery, SOON).await.unwrap();
    }
    let results = publish(&session, &batch).await;
    all_in_place(&stream, &batch, &results).await;
    for (at, result) in results.iter().enumerate() {
        assert_eq!(result.as_ref().unwrap().duplicate, at < 3, "{at}");
    }
    assert_eq!(batches(&stream).await, HashMap::from([(None, 300)]));
}

/// Of the keys of `batch` all are stored but that of `bad`, of which a beginning is.
async fn held_at(
    stream: &Stream,
    batch: &[Delivery],
    results: &Results,
    bad: usize,
    reason: &PublishErrorKind,
) {
    let places = places(stream).await;
    let stored: Vec<_> = places.values().collect();
    let key = &batch[bad].event.ordering_key;
    for (at, (delivery, result)) in batch.iter().zip(results).enumerate() {
        let kind = result.as_ref().map_err(|error| &error.kind);
        let there = stored.contains(&&delivery.event.id);
        match kind {
            Err(kind) if at == bad => assert_eq!(kind, reason),
            Err(PublishErrorKind::Behind) if at > bad && delivery.event.ordering_key == *key => {}
            Ok(_) if at < bad || delivery.event.ordering_key != *key => {
                assert!(there);
                continue;
            }
            other => panic!("event {at} of a batch that is held at {bad}: {other:?}"),
        }
        assert!(!there, "{at}");
    }
}

/// A batch whose event at `place` is changed.
fn with(place: usize, change: impl FnOnce(&mut outboxd::event::Event)) -> Vec<Delivery> {
    let mut batch = events(1, 300, 4);
    batch[place] = delivery_of(1 + place as i64, |event| {
        event.ordering_key = batch[place].event.ordering_key.clone();
        change(event);
    });
    batch
}

#[tokio::test]
async fn a_message_too_large_for_the_stream_holds_its_key_alone() {
    for bad in [0, 150, 299] {
        let server = nats::Server::start().await;
        let small = Config {
            max_message_size: 2_000,
            ..atomic()
        };
        let stream = create(&server, small).await;
        let session = open(server.url()).await;
        let batch = with(bad, |event| {
            event.payload = Payload::Bytes(Bytes::from(vec![b'x'; 2_001]));
        });
        let results = publish(&session, &batch).await;
        held_at(&stream, &batch, &results, bad, &rejected("too_large")).await;
    }
}

#[tokio::test]
async fn a_forbidden_subject_holds_its_key_alone() {
    for bad in [0, 150, 299] {
        let server = nats::Server::start_with(PERMISSIONS).await;
        let stream = admin(&server).await.create_stream(atomic()).await.unwrap();
        let options = as_user(&server, "relay", "p@ss/w?rd#%:&");
        let sink: Arc<dyn outboxd::sink::Sink> = Arc::new(Nats::new(options).unwrap());
        let session = sink.open().await.unwrap();
        let batch = with(bad, |event| event.kind = "secret.key".to_owned());
        let results = publish(&session, &batch).await;
        held_at(&stream, &batch, &results, bad, &UNAVAILABLE).await;
    }
}

#[tokio::test]
async fn a_stream_that_allows_no_batches_any_more_gets_its_events_singly() {
    let server = nats::Server::start().await;
    let stream = create(&server, atomic()).await;
    let session = open(server.url()).await;
    server
        .jetstream()
        .await
        .update_stream(config())
        .await
        .unwrap();
    let batch = events(1, 300, 3);
    let results = publish(&session, &batch).await;
    all_in_place(&stream, &batch, &results).await;
}

#[tokio::test]
async fn a_batch_that_nobody_answers_ends_in_time_and_is_not_sent_again_behind_it() {
    let server = nats::Server::start().await;
    let stream = create(&server, atomic()).await;
    let network = Proxy::to(server.address()).await;
    let session = open(format!("nats://{}", network.address())).await;
    network.set(Mode::Mute);
    let patience = Duration::from_millis(500);
    let batch = events(1, 300, 3);
    let began = Instant::now();
    let results = session.publish_batch(&batch, patience, patience).await;
    assert!(began.elapsed() < 2 * patience, "{:?}", began.elapsed());
    let mut kinds = results.into_iter().map(kind);
    assert_eq!(kinds.next(), Some(UNAVAILABLE));
    assert!(kinds.all(|kind| kind == PublishErrorKind::Behind));
    session.close().await;
    let session = open(server.url()).await;
    session.publish(&delivery(1_000), SOON).await.unwrap();
    assert_eq!(stream.get_info().await.unwrap().state.messages, 1);
}
