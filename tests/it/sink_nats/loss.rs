//! Lost connections: nothing is lost with them, and nothing comes after them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use outboxd::event::Payload;
use outboxd::sink::nats::Nats;
use outboxd::sink::{Delivery, PublishErrorKind, Session, Sink};
use outboxd::testing::sink::{delivery, delivery_of};

use super::bench::{SOON, config, create, kind, open, options};
use super::fake;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{eventually, nats};

const LOST: PublishErrorKind = PublishErrorKind::Unavailable {
    connection_lost: true,
};

/// Publishes all with `flight` at a time; gives back those without an acknowledgement.
async fn publish_all(
    session: &Arc<dyn Session>,
    deliveries: Vec<Delivery>,
    flight: usize,
) -> Vec<Delivery> {
    let mut left = Vec::new();
    for chunk in deliveries.chunks(flight) {
        let results = join_all(chunk.iter().map(|d| session.publish(d, SOON))).await;
        for (result, delivery) in results.into_iter().zip(chunk) {
            match result.map_err(|error| error.kind) {
                Ok(_) => {}
                Err(PublishErrorKind::Unknown) => left.push(delivery.clone()),
                Err(kind) if kind == LOST => left.push(delivery.clone()),
                Err(kind) => panic!("{kind:?}"),
            }
        }
    }
    left
}

#[tokio::test]
async fn a_server_killed_in_mid_flight_loses_and_doubles_nothing() {
    let mut server = nats::Server::start().await;
    create(&server, config()).await;
    let mut left: Vec<Delivery> = (1..=6_000).map(delivery).collect();
    let mut sessions = 0;
    while !left.is_empty() {
        let session = open(server.url()).await;
        sessions += 1;
        let publishing = tokio::spawn({
            let session = Arc::clone(&session);
            let all = std::mem::take(&mut left);
            async move { publish_all(&session, all, 1_000).await }
        });
        if sessions <= 2 {
            let jetstream = server.jetstream().await;
            let at_least = sessions * 1_500;
            eventually(SOON, "some events are stored", || async {
                let info = jetstream
                    .get_stream("EVT")
                    .await
                    .unwrap()
                    .cached_info()
                    .clone();
                let stored = info.state.messages;
                (stored >= at_least).then_some(()).ok_or(stored.to_string())
            })
            .await;
            server.kill9();
            tokio::time::timeout(SOON, session.lost()).await.unwrap();
        }
        left = publishing.await.unwrap();
        session.close().await;
        if sessions <= 2 {
            assert!(!left.is_empty(), "the kill came too late to mean anything");
            server.restart().await;
        }
    }
    let jetstream = server.jetstream().await;
    let stream = jetstream.get_stream("EVT").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 6_000);
}

#[tokio::test]
async fn a_cut_connection_is_not_mended_behind_our_back() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let network = Proxy::to(server.address()).await;
    let url = format!("nats://{}", network.address());
    let session = open(&url).await;
    session.publish(&delivery(1), SOON).await.unwrap();
    // Acknowledgements are swallowed, so the next ones are surely under way when the cut comes.
    network.set(Mode::Mute);
    let deliveries: Vec<_> = (2..=100).map(delivery).collect();
    let publishes = join_all(deliveries.iter().map(|d| session.publish(d, SOON)));
    let cut = async {
        let stream = server.jetstream().await.get_stream("EVT").await.unwrap();
        eventually(SOON, "all are stored", || async {
            let stored = stream.get_info().await.unwrap().state.messages;
            (stored == 100).then_some(()).ok_or(stored.to_string())
        })
        .await;
        network.cut_once().await;
    };
    let (results, ()) = tokio::join!(publishes, cut);
    assert!(
        results
            .into_iter()
            .all(|result| kind(result) == PublishErrorKind::Unknown)
    );
    tokio::time::timeout(SOON, session.lost()).await.unwrap();
    assert_eq!(kind(session.publish(&delivery(101), SOON).await), LOST);
    assert_eq!(network.accepted(), 1, "the client reconnected by itself");
    let session = open(&url).await;
    assert_eq!(network.accepted(), 2);
    let receipt = session.publish(&delivery(2), SOON).await.unwrap();
    assert!(receipt.duplicate);
}

#[tokio::test]
async fn what_a_closed_session_had_buffered_is_never_sent() {
    let server = fake::Server::start().await;
    let session = open(server.url()).await;
    server.stop_reading();
    // Far more than the kernel takes, and more events than the client queues.
    let payload = Bytes::from(vec![b'x'; 500_000]);
    let deliveries: Vec<_> = (1..=300)
        .map(|seq| delivery_of(seq, |event| event.payload = Payload::Bytes(payload.clone())))
        .collect();
    let short = Duration::from_millis(500);
    let results = join_all(deliveries.iter().map(|d| session.publish(d, short))).await;
    let kinds: Vec<_> = results.into_iter().map(kind).collect();
    let handed_over = kinds
        .iter()
        .filter(|kind| **kind == PublishErrorKind::Unknown)
        .count();
    assert!(
        (100..300).contains(&handed_over),
        "{handed_over} handed over"
    );
    session.close().await;
    // Whatever the kernel had taken comes now, and then the end: the socket is closed.
    let arrived = tokio::time::timeout(SOON, server.read_to_the_end()).await;
    let arrived = arrived
        .expect("the connection is still open after close()")
        .len();
    assert!(
        arrived < handed_over / 2,
        "{arrived} of {handed_over} came after close()"
    );
}

#[tokio::test]
async fn a_silent_connection_is_noticed() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let network = Proxy::to(server.address()).await;
    let session = open(format!("nats://{}", network.address())).await;
    network.set(Mode::Hole);
    let error = session
        .publish(&delivery(1), Duration::from_millis(300))
        .await;
    assert_eq!(kind(error), PublishErrorKind::Unknown);
    let reason = tokio::time::timeout(Duration::from_secs(30), session.lost()).await;
    assert!(
        reason.is_ok(),
        "three unanswered pings did not end the session"
    );
    let before = std::time::Instant::now();
    session.close().await;
    assert!(before.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn an_abandoned_open_leaves_no_connection() {
    // Accepts and never greets.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let sink = Nats::new(options(url)).unwrap();
    let (accepted, opened) = tokio::join!(
        listener.accept(),
        tokio::time::timeout(Duration::from_millis(300), sink.open())
    );
    assert!(opened.is_err());
    let (mut stream, _) = accepted.unwrap();
    let mut rest = Vec::new();
    let end = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
    tokio::time::timeout(Duration::from_secs(3), end)
        .await
        .expect("the connection is still open")
        .unwrap();
}

#[tokio::test]
async fn a_dropped_publish_is_forgotten() {
    let server = nats::Server::start().await;
    let stream = create(&server, config()).await;
    let session = open(server.url()).await;
    let events: Vec<_> = (1..=500).map(delivery).collect();
    for delivery in &events {
        let publish = session.publish(delivery, SOON);
        tokio::select! {
            biased;
            _ = publish => {}
            () = tokio::task::yield_now() => {}
        }
    }
    // Whatever became of those, the session works and repeats are recognised.
    let mut positions = BTreeSet::new();
    for delivery in &events {
        let receipt = session.publish(delivery, SOON).await.unwrap();
        assert!(positions.insert(receipt.position.unwrap()));
    }
    assert_eq!(stream.get_info().await.unwrap().state.messages, 500);
}

#[tokio::test]
async fn a_dropped_session_ends_its_connection() {
    let server = fake::Server::start().await;
    let session = open(server.url()).await;
    session.publish(&delivery(1), SOON).await.unwrap();
    drop(session);
    let arrived = tokio::time::timeout(SOON, server.read_to_the_end()).await;
    assert_eq!(arrived.expect("the connection is still open").len(), 1);
}
