//! From commit to stream: a steady writer, and the stream's own timestamps on the same machine. And what the
//! relay costs while nothing happens.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use outboxd::relay;
use outboxd::source::PublishedKeep;
use outboxd::testing::faults::{Faults, FaultySource};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::cpu::{Cost, Meter};
use crate::it::support::eventually;
use crate::stage::{Keys, Outbox, Stage, options};

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Latency {
    /// From before the commit was sent: an upper bound.
    pub sent_p50: f64,
    pub sent_p99: f64,
    /// From the moment the writer heard that it was committed.
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
    pub cost: Cost,
    pub events: usize,
}

/// What an idle relay uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Idle {
    pub cost: Cost,
    /// Calls of the source.
    pub calls: u64,
}

/// `rate` events a second for `span`, one transaction each, over 10,000 keys.
pub async fn at_rate(stage: &Stage, rate: u32, span: Duration) -> Latency {
    let outbox = stage.outbox(PublishedKeep::Full, 0, Keys::None).await;
    let stream = stage.stream().await;
    let relay = relay::start(options(outbox.source(), stage.sink(), PublishedKeep::Full))
        .await
        .unwrap();
    relay.drained().await;
    // The first second settles into the mode that fits the rate; it is not measured.
    let warm = write(&outbox, rate, Duration::from_millis(1_500), "warm").await;
    let meter = Meter::start(stage.watched());
    let stamps = write(&outbox, rate, span, "e").await;
    let cost = meter.stop();
    let all = (warm.len() + stamps.len()) as u64;
    eventually(
        Duration::from_secs(60),
        "all events are in the stream",
        || async {
            let messages = stream.get_info().await.unwrap().state.messages;
            (messages == all)
                .then_some(())
                .ok_or(format!("{messages} of {all}"))
        },
    )
    .await;
    relay.shutdown().await.unwrap();

    let arrived = arrivals(stage, &stream).await;
    let mut from_sent = Vec::new();
    let mut from_known = Vec::new();
    for (request_id, (sent, known)) in &stamps {
        let arrived = arrived[request_id];
        from_sent.push((arrived - sent) as f64 / 1e6);
        from_known.push((arrived - known) as f64 / 1e6);
    }
    from_sent.sort_by(f64::total_cmp);
    from_known.sort_by(f64::total_cmp);
    Latency {
        sent_p50: percentile(&from_sent, 0.50),
        sent_p99: percentile(&from_sent, 0.99),
        p50: percentile(&from_known, 0.50),
        p99: percentile(&from_known, 0.99),
        max: percentile(&from_known, 1.0),
        cost,
        events: stamps.len(),
    }
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len());
    sorted[at - 1]
}

/// Nanoseconds since 1970 by the clock that the broker on this machine reads too.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

/// Writes; gives for each request id the moments before its commit was sent and after it was acknowledged.
async fn write(
    outbox: &Outbox,
    rate: u32,
    span: Duration,
    name: &str,
) -> HashMap<String, (i64, i64)> {
    let mut connection = outbox.database.writer().await;
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let end = Instant::now() + span;
    let mut stamps = HashMap::new();
    let mut n = 0_u32;
    while Instant::now() < end {
        ticks.tick().await;
        n += 1;
        let request_id = format!("{name}-{n}");
        let key = format!("k{}", n.wrapping_mul(2_654_435_761) % 10_000);
        let mut transaction = sqlx::Connection::begin(&mut connection).await.unwrap();
        sqlx::query(
            "insert into outbox.event (kind, ordering_key, payload, headers)
             values ('order.changed', $1, json_build_object('x', repeat('y', 1000)),
                     jsonb_build_object('request_id', $2::text))",
        )
        .bind(key)
        .bind(request_id.clone())
        .execute(&mut *transaction)
        .await
        .unwrap();
        let sent = now();
        transaction.commit().await.unwrap();
        stamps.insert(request_id, (sent, now()));
    }
    stamps
}

/// When each event was stored, by the stream's word.
async fn arrivals(
    stage: &Stage,
    stream: &async_nats::jetstream::stream::Stream,
) -> HashMap<String, i64> {
    use async_nats::jetstream::consumer::pull::OrderedConfig;
    let total = stream.get_info().await.unwrap().state.messages;
    let own = stage
        .nats
        .jetstream()
        .await
        .get_stream("EVENTS")
        .await
        .unwrap();
    let consumer = own.create_consumer(OrderedConfig::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut arrivals = HashMap::new();
    for _ in 0..total {
        let message = messages.next().await.unwrap().unwrap();
        let stored = message.info().unwrap().published.unix_timestamp_nanos();
        let headers = message.headers.clone().unwrap_or_default();
        let request_id = headers.get("request_id").unwrap().to_string();
        arrivals.insert(request_id, i64::try_from(stored).unwrap());
    }
    arrivals
}

/// A relay with nothing to do, once it has come to rest.
pub async fn idle(stage: &Stage, span: Duration) -> Idle {
    let outbox = stage.outbox(PublishedKeep::Full, 0, Keys::None).await;
    stage.stream().await;
    let faults = Faults::default();
    let source = Arc::new(FaultySource::new(outbox.source(), faults.clone()));
    let relay = relay::start(options(source, stage.sink(), PublishedKeep::Full))
        .await
        .unwrap();
    relay.drained().await;
    // Until it listens, and past the first rounds of housekeeping.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = faults.total();
    let meter = Meter::start(stage.watched());
    tokio::time::sleep(span).await;
    let cost = meter.stop();
    let calls = faults.total() - before;
    relay.shutdown().await.unwrap();
    Idle { cost, calls }
}
