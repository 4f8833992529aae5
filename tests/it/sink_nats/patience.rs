//! How long a batch is waited for, and by what: slow networks, subjects on which nobody answers, time that is over.

use std::time::{Duration, Instant};

use outboxd::event::Event;
use outboxd::sink::nats::{Nats, Options};
use outboxd::sink::{Delivery, PublishErrorKind, Sink};
use outboxd::testing::sink::delivery_of;

use super::bench::{SOON, UNAVAILABLE, batched, create, open, options};
use super::lane::{events, places};
use crate::support::nats;
use crate::support::proxy::{Mode, Proxy};

/// The patience of these tests for one answer.
const SHORT: Duration = Duration::from_millis(400);

#[tokio::test]
async fn a_batch_has_the_publish_timeout_for_each_round_trip() {
    let server = nats::Server::start().await;
    let stream = create(&server, batched()).await;
    let network = Proxy::to(server.address()).await;
    let session = open(format!("nats://{}", network.address())).await;
    network.set(Mode::Lag(SHORT * 3 / 8));
    let batch = events(1, 300, 7);
    let began = Instant::now();
    let results = session.publish_batch(&batch, SHORT, SOON).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(began.elapsed() > SHORT, "one round trip was enough");
    assert_eq!(places(&stream).await.len(), 300);
}

/// A server grants a batch little at first when others are under way.
#[tokio::test]
async fn batches_side_by_side_take_few_round_trips() {
    const LAG: Duration = Duration::from_millis(50);
    let server = nats::Server::start().await;
    let stream = create(&server, batched()).await;
    let network = Proxy::to(server.address()).await;
    network.set(Mode::Lag(LAG));
    let session = open(format!("nats://{}", network.address())).await;
    let batches = [1, 1_001, 2_001, 3_001].map(|from| events(from, 500, 7));
    let began = Instant::now();
    let publish = |batch| session.publish_batch(batch, SOON, SOON);
    let results = futures_util::future::join_all(batches.iter().map(|batch| publish(batch))).await;
    let round_trips = began.elapsed().as_secs_f64() / (2 * LAG).as_secs_f64();
    println!("{round_trips:.1} round trips");
    assert!(results.iter().flatten().all(Result::is_ok));
    assert_eq!(places(&stream).await.len(), 2_000);
    assert!(round_trips < 7.0, "{round_trips:.1} round trips");
}

#[tokio::test]
async fn a_batch_that_hears_nothing_is_given_up_after_one_timeout() {
    let server = nats::Server::start().await;
    create(&server, batched()).await;
    let network = Proxy::to(server.address()).await;
    let session = open(format!("nats://{}", network.address())).await;
    network.set(Mode::Hold);
    let began = Instant::now();
    let results = session.publish_batch(&events(1, 300, 7), SHORT, SOON).await;
    let took = began.elapsed();
    assert!(took >= SHORT && took < SHORT * 3, "{took:?}");
    assert!(results.iter().all(Result::is_err));
}

#[tokio::test]
async fn nothing_is_sent_when_the_time_is_over() {
    let server = nats::Server::start().await;
    let stream = create(&server, batched()).await;
    let session = open(server.url()).await;
    for count in [3, 300] {
        let batch = events(1, count, 7);
        let results = session.publish_batch(&batch, SOON, Duration::ZERO).await;
        assert_eq!(results.len(), batch.len());
        for result in results {
            let kind = result.unwrap_err().kind;
            let unsent = [UNAVAILABLE, PublishErrorKind::Behind];
            assert!(unsent.contains(&kind), "{kind:?}");
        }
    }
    // The connection carried this after whatever else it carried.
    session
        .publish(&events(1_000, 1, 1)[0], SOON)
        .await
        .unwrap();
    assert_eq!(places(&stream).await.len(), 1);
}

fn of_kind(seq: i64, kind: &str) -> Delivery {
    delivery_of(seq, |event: &mut Event| {
        event.kind = kind.to_owned();
        event.ordering_key = Some(format!("k{seq}").into());
    })
}

#[tokio::test]
async fn a_subject_on_which_nobody_answers_holds_up_others_once() {
    let server = nats::Server::start().await;
    let mut config = batched();
    create(&server, config.clone()).await;
    // Somebody listens there, so the server does not say that nobody does.
    let plain = server.client().await;
    let _deaf = plain.subscribe("deaf.>").await.unwrap();
    plain.flush().await.unwrap();
    let options = Options {
        subject: "{kind}".to_owned(),
        ..options(server.url())
    };
    let session = Nats::new(options).unwrap().open().await.unwrap();
    let batch = |from: i64, count: i64| -> Vec<Delivery> {
        let kind = |seq| match seq == from {
            true => "deaf.a",
            false => "evt.a",
        };
        (from..from + count)
            .map(|seq| of_kind(seq, kind(seq)))
            .collect()
    };
    for (round, count) in [(0, 20), (1, 5), (2, 20)] {
        let began = Instant::now();
        let batch = batch(1 + round * 100, count);
        let results = session.publish_batch(&batch, SHORT, SOON).await;
        let took = began.elapsed();
        let first = &results[0].as_ref().unwrap_err().kind;
        if round == 0 {
            assert_eq!(*first, PublishErrorKind::Unknown);
            assert!(took >= SHORT);
            continue;
        }
        assert_eq!(*first, UNAVAILABLE);
        assert!(took < SHORT / 2, "it was waited for again: {took:?}");
        assert!(results[1..].iter().all(Result::is_ok), "{results:?}");
    }
    // By itself it is tried all the same, and when it is answered it goes with the others again.
    let jetstream = server.jetstream().await;
    config.subjects.push("deaf.>".to_owned());
    jetstream.update_stream(&config).await.unwrap();
    session.publish(&batch(501, 1)[0], SOON).await.unwrap();
    let results = session.publish_batch(&batch(601, 20), SHORT, SOON).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}
