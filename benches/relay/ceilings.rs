//! What the two ends can do by themselves: the broker without a database, the database without a broker.
#![allow(
    clippy::disallowed_methods,
    reason = "these headers are written here, no row decides what they are"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use futures_util::stream::{self, StreamExt};
use outboxd::lease::{Lease, shard_of};
use outboxd::sink::Receipt;
use outboxd::source::{Outcome, PublishedKeep, ReadBounds, Row, Source, Verdict};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::cpu::{Cost, Meter};
use crate::measurement::{
    Column, Figures, Group, Line, NATS, OTHERS, P50, P99, POSTGRES, RATE, RELAY, percentile,
};
use crate::outbox::{Fill, Keys, Outbox};
use crate::sitting::Sitting;

pub const BROKER: &str = "broker alone";
pub const ROUND_TRIP: &str = "one publish at a time";
/// The same with everything gone cold in between, as it is for a relay at a small rate.
pub const PACED: &str = "one publish at a time, 200 a second";
pub const DATABASE_NONE: &str = "database alone, nothing kept";
pub const DATABASE_FULL: &str = "database alone, history kept";

/// Publishes that wait for their acknowledgement at the same time.
const WINDOWS: [usize; 4] = [512, 1_024, 2_048, 4_096];
/// Rows of one read and outcomes of one settlement.
const BATCH: u32 = 500;

pub fn group() -> Group {
    Group {
        name: "ceiling",
        lines: vec![
            Line::new(BROKER, &[], |sitting| Box::pin(broker(sitting))),
            Line::new(ROUND_TRIP, &[], |sitting| {
                Box::pin(round_trip(sitting, Duration::ZERO))
            }),
            Line::new(PACED, &[], |sitting| {
                Box::pin(round_trip(sitting, Duration::from_millis(5)))
            }),
            Line::new(DATABASE_NONE, &[], |sitting| {
                Box::pin(database(sitting, PublishedKeep::None))
            }),
            Line::new(DATABASE_FULL, &[], |sitting| {
                Box::pin(database(sitting, PublishedKeep::Full))
            }),
        ],
        columns: vec![
            Column::of(RATE, 0),
            Column::of(P50, 3),
            Column::of(P99, 3),
            Column::of(RELAY, 1),
            Column::of(POSTGRES, 1),
            Column::of(NATS, 1),
            Column::of(OTHERS, 0),
        ],
        goals: Vec::new(),
    }
}

/// The best of the windows.
async fn broker(sitting: &Sitting) -> Figures {
    let events = sitting.arguments.events;
    let mut best: Option<(usize, Cost)> = None;
    for window in WINDOWS {
        let cost = publishes(sitting, events, window).await;
        if best.is_none_or(|(_, best)| cost.wall < best.wall) {
            best = Some((window, cost));
        }
    }
    let (window, cost) = best.unwrap();
    cost.figures(events)
        .remark(format!("best with {window} waiting"))
}

/// Plain asynchronous publishes of as many headers and bytes as the relay sends.
async fn publishes(sitting: &Sitting, events: u32, window: usize) -> Cost {
    let stage = &sitting.stage;
    let stream = stage.stream().await;
    let context = ContextBuilder::new()
        .max_ack_inflight(2 * window)
        .build(stage.nats.client().await);
    let payload = bytes::Bytes::from(vec![b'y'; 1_024]);
    let meter = Meter::start(stage.watched(None));
    stream::iter(0..events)
        .map(|n| {
            let publish = context.publish_with_headers(
                "events.order.changed",
                headers(Uuid::from_u128(n.into()), n.into(), &format!("k{n}")),
                payload.clone(),
            );
            async { publish.await.unwrap().await.unwrap() }
        })
        .buffer_unordered(window)
        .for_each(|ack| async { drop(ack) })
        .await;
    let cost = meter.stop();
    let stored = stream.get_info().await.unwrap().state.messages;
    let wrong = (stored != u64::from(events)).then(|| format!("{stored} messages of {events}"));
    sitting.audited(events.into(), wrong.into_iter().collect());
    cost
}

/// As many headers as the relay sends.
pub fn headers(id: Uuid, seq: i64, key: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("orders:{id}"));
    headers.insert("Nats-Expected-Stream", "EVENTS");
    headers.insert("request_id", format!("r-{seq}"));
    headers.insert("Outbox-Kind", "order.changed");
    headers.insert("Outbox-Key", key);
    headers.insert("Outbox-Seq", seq.to_string());
    headers.insert("Outbox-Source", "orders");
    headers.insert("Outbox-Occurred-At", "2026-01-01T00:00:00.000000Z");
    headers.insert("Outbox-Attempt", "1");
    headers
}

/// Publishes that each wait for the one before, and for a pause.
async fn round_trip(sitting: &Sitting, pause: Duration) -> Figures {
    let stage = &sitting.stage;
    stage.stream().await;
    let context: Context = stage.nats.jetstream().await;
    let payload = bytes::Bytes::from(vec![b'y'; 1_024]);
    let events = sitting.arguments.at_most(2_000);
    let events = if pause.is_zero() {
        events
    } else {
        events.div_ceil(4)
    };
    let mut times = Vec::new();
    let meter = Meter::start(stage.watched(None));
    for n in 0..events {
        let headers = headers(Uuid::from_u128(n.into()), n.into(), "k");
        let start = Instant::now();
        context
            .publish_with_headers("events.order.changed", headers, payload.clone())
            .await
            .unwrap()
            .await
            .unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e3);
        // Time itself is the subject. A pause of nothing would be one of a millisecond.
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    let cost = meter.stop();
    times.sort_by(f64::total_cmp);
    let figures = if pause.is_zero() {
        cost.figures(events)
    } else {
        Figures::default().with(OTHERS, cost.others * 100.0)
    };
    figures
        .with(P50, percentile(&times, 0.5))
        .with(P99, percentile(&times, 0.99))
}

/// The source's own reads and settlements, side by side as in the relay, with nothing between them.
async fn database(sitting: &Sitting, keep: PublishedKeep) -> Figures {
    let stage = &sitting.stage;
    let events = sitting.arguments.events;
    let outbox = Outbox::filled(stage, keep, Fill::new(events, Keys::Over(10_000))).await;
    let source = outbox.source();
    source.open().await.unwrap();
    let leases = source
        .acquire(Uuid::new_v4(), Duration::from_secs(300), u16::MAX)
        .await
        .unwrap();
    let (rows, mut read) = mpsc::channel::<Vec<Row>>(8);
    let meter = Meter::start(stage.watched(None));
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
    sitting.audited(events.into(), outbox.findings(0, events.into()).await);
    cost.figures(events)
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
