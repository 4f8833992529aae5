//! Publishes a second, against the plain client in the same run. Run by hand:
//! `cargo test --test it throughput -- --ignored --nocapture`.
#![allow(
    clippy::disallowed_methods,
    reason = "these headers are written here, no row decides what they are"
)]
#![allow(clippy::print_stdout)]

use std::time::Instant;

use async_nats::jetstream;
use futures_util::stream::{self, StreamExt};
use outboxd::event::Payload;
use outboxd::testing::sink::delivery_of;

use super::bench::{SOON, config, create, open};
use crate::support::nats;

const EVENTS: usize = 40_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn publishes_a_second() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let payload = bytes::Bytes::from(vec![b'x'; 1_024]);
    let mut next = 0;
    for round in 0..2 {
        for flight in [256, 2_048] {
            let session = open(server.url()).await;
            let events: Vec<_> = (0..EVENTS)
                .map(|_| {
                    next += 1;
                    delivery_of(next, |e| e.payload = Payload::Bytes(payload.clone()))
                })
                .collect();
            let before = Instant::now();
            stream::iter(&events)
                .map(|delivery| session.publish(delivery, SOON))
                .buffer_unordered(flight)
                .for_each(|result| async { drop(result.unwrap()) })
                .await;
            let ours = EVENTS as f64 / before.elapsed().as_secs_f64();
            session.close().await;

            let client = server.client().await;
            let context = jetstream::context::ContextBuilder::new()
                .max_ack_inflight(10_000)
                .build(client);
            let before = Instant::now();
            stream::iter(0..EVENTS)
                .map(|n| {
                    let mut headers = async_nats::HeaderMap::new();
                    headers.insert("Nats-Msg-Id", format!("plain:{round}:{flight}:{n}"));
                    // As many headers as an event of the relay has, so that the wire sees the same.
                    for name in ["Kind", "Key", "Seq", "Source", "Occurred-At", "Attempt"] {
                        headers.insert(format!("Outbox-{name}"), "conformance.event");
                    }
                    let publish =
                        context.publish_with_headers("evt.plain", headers, payload.clone());
                    async { publish.await.unwrap().await.unwrap() }
                })
                .buffer_unordered(flight)
                .for_each(|ack| async { drop(ack) })
                .await;
            let plain = EVENTS as f64 / before.elapsed().as_secs_f64();
            println!("in flight {flight:5}: session {ours:8.0}/s, plain client {plain:8.0}/s");
        }
    }
}
