//! What the two ends can do by themselves: the broker without a database, the database without a broker.
#![allow(
    clippy::disallowed_methods,
    reason = "these headers are written here, no row decides what they are"
)]

use async_nats::jetstream::context::ContextBuilder;
use futures_util::stream::{self, StreamExt};
use outboxd::lease::{Lease, shard_of};
use outboxd::sink::Receipt;
use outboxd::source::{Outcome, PublishedKeep, ReadBounds, Row, Source, Verdict};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::cpu::{Cost, Meter};
use crate::stage::{Keys, Stage};

/// Publishes that wait for their acknowledgement at the same time: the relay's default.
const WINDOW: usize = 2_048;
/// Rows of one read and outcomes of one settlement.
const BATCH: u32 = 500;

/// Plain asynchronous publishes of as many headers and bytes as the relay sends.
pub async fn publishes(stage: &Stage, events: u32) -> Cost {
    let stream = stage.stream().await;
    let context = ContextBuilder::new()
        .max_ack_inflight(2 * WINDOW)
        .build(stage.nats.client().await);
    let payload = bytes::Bytes::from(vec![b'y'; 1_024]);
    let meter = Meter::start(stage.watched());
    stream::iter(0..events)
        .map(|n| {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert(
                "Nats-Msg-Id",
                format!("orders:{}", Uuid::from_u128(n.into())),
            );
            headers.insert("Nats-Expected-Stream", "EVENTS");
            headers.insert("request_id", format!("r-{n}"));
            headers.insert("Outbox-Kind", "order.changed");
            headers.insert("Outbox-Key", format!("k{n}"));
            headers.insert("Outbox-Seq", n.to_string());
            headers.insert("Outbox-Source", "orders");
            headers.insert("Outbox-Occurred-At", "2026-01-01T00:00:00.000000Z");
            headers.insert("Outbox-Attempt", "1");
            let publish =
                context.publish_with_headers("events.order.changed", headers, payload.clone());
            async { publish.await.unwrap().await.unwrap() }
        })
        .buffer_unordered(WINDOW)
        .for_each(|ack| async { drop(ack) })
        .await;
    let cost = meter.stop();
    let state = stream.get_info().await.unwrap().state;
    assert_eq!(state.messages, u64::from(events));
    cost
}

/// The source's own reads and settlements, side by side as in the relay, with nothing between them.
pub async fn reads_and_settlements(stage: &Stage, events: u32, keep: PublishedKeep) -> Cost {
    let outbox = stage.outbox(keep, events, Keys::Over(10_000)).await;
    let source = outbox.source();
    source.open().await.unwrap();
    let leases = source
        .acquire(Uuid::new_v4(), Duration::from_secs(300))
        .await
        .unwrap();
    let (rows, mut read) = mpsc::channel::<Vec<Row>>(8);
    let meter = Meter::start(stage.watched());
    let reader = Arc::clone(&source);
    let reading = tokio::spawn(async move {
        let mut after = 0;
        loop {
            let batch = reader
                .read("events", after, ReadBounds::rows(BATCH), &[])
                .await
                .unwrap();
            let Some(last) = batch.last() else { break };
            after = last.seq;
            rows.send(batch).await.unwrap();
        }
    });
    while let Some(batch) = read.recv().await {
        let outcomes: Vec<Outcome> = batch.iter().map(|row| published(row, &leases)).collect();
        let settled = source.settle(&outcomes, false).await.unwrap();
        assert!(settled.iter().all(|applied| *applied));
    }
    reading.await.unwrap();
    let cost = meter.stop();
    source.close().await;
    assert_eq!(outbox.pending().await, 0);
    cost
}

fn published(row: &Row, leases: &[Lease]) -> Outcome {
    let shard = shard_of(row.ordering_key.as_deref(), row.seq, 16);
    let sink: Arc<str> = "events".into();
    Outcome {
        seq: row.seq,
        id: row.id,
        route: Arc::from([Arc::clone(&sink)]),
        sink,
        lease: *leases.iter().find(|lease| lease.shard == shard).unwrap(),
        verdict: Verdict::Published {
            attempts: 0,
            receipt: Receipt {
                stream: Some("EVENTS".into()),
                position: Some(1),
                duplicate: false,
            },
        },
    }
}
