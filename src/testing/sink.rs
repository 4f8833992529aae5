//! The conformance suite every sink passes, for sinks outside this crate too.
//!
//! A test gives a [`Bench`], which knows the destination well enough to read it and to take it away, and
//! calls [`conformance`]. The suite panics with words at the first thing a sink may not do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use uuid::Uuid;

use crate::event::{Event, Payload, Timestamp};
use crate::lease::Lease;
use crate::sink::{Delivery, PublishError, PublishErrorKind, Session, Sink};

mod batches;

/// What a test knows about a destination.
#[async_trait]
pub trait Bench: Send + Sync {
    /// The sink under test, configured for the destination.
    fn sink(&self) -> Arc<dyn Sink>;

    /// Everything the destination holds, in its order, read without the sink's help.
    async fn arrived(&self) -> Vec<Arrived>;

    /// Makes the destination unreachable, so that a session notices at the latest with its next publish.
    async fn take_away(&self);

    /// Ends [`Bench::take_away`]; returns when a sink can reach the destination again. What arrived
    /// before is still there.
    async fn bring_back(&self);

    /// The sink looks at rows before it sends them (a sink for tests may not).
    fn looks_at_rows(&self) -> bool {
        true
    }

    /// The sink makes a subject from the kind and rejects kinds that make none.
    fn has_subjects(&self) -> bool {
        false
    }

    /// An event with a payload of this many bytes is too large for the destination.
    fn too_large(&self) -> Option<usize> {
        None
    }
}

/// An event as the destination holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Name of the source.
    pub source: String,
    /// Place in the outbox.
    pub seq: i64,
    /// Identity.
    pub id: Uuid,
    /// Kind.
    pub kind: String,
    /// Ordering key.
    pub ordering_key: Option<String>,
    /// Content type.
    pub content_type: Option<String>,
    /// The row's own headers, without those of the relay, the broker and the content type.
    pub headers: BTreeMap<String, String>,
    /// When it happened, RFC 3339.
    pub occurred_at: String,
    /// Charged failures + 1.
    pub attempt: u32,
    /// The body.
    pub payload: Bytes,
}

impl Arrived {
    /// How a delivery must look after it arrived.
    ///
    /// # Panics
    /// When the delivery's headers are not an object of strings.
    pub fn of(delivery: &Delivery) -> Self {
        let event = &*delivery.event;
        Self {
            source: delivery.source.to_string(),
            seq: event.seq,
            id: event.id,
            kind: event.kind.clone(),
            ordering_key: event.ordering_key.as_deref().map(str::to_owned),
            content_type: event.content_type.clone(),
            headers: must(serde_json::from_str(&event.headers), "headers of an event"),
            occurred_at: event.occurred_at.to_string(),
            attempt: delivery.attempt,
            payload: event.payload.as_bytes().clone(),
        }
    }
}

/// An ordinary delivery with this seq and an id of its own for each call with another seq.
pub fn delivery(seq: i64) -> Delivery {
    delivery_of(seq, |_| ())
}

/// Like [`delivery`], changed by `change`.
pub fn delivery_of(seq: i64, change: impl FnOnce(&mut Event)) -> Delivery {
    let mut event = Event {
        seq,
        id: Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + seq as u128),
        kind: "conformance.event".to_owned(),
        ordering_key: Some(format!("key-{}", seq % 7).into()),
        payload: Payload::Json(Bytes::from(format!("{{\"n\": {seq}}}"))),
        content_type: None,
        headers: "{}".to_owned(),
        occurred_at: Timestamp(1_700_000_000_000_000 + seq),
    };
    change(&mut event);
    Delivery {
        event: Arc::new(event),
        source: "conformance".into(),
        attempt: 1,
        may_be_repeat: false,
        lease: Lease { shard: 0, token: 1 },
    }
}

/// Time that anything here may take on a loaded machine.
const SOON: Duration = Duration::from_secs(20);

/// Runs every part. The destination must be empty and used by nothing else.
///
/// # Panics
/// With words, at the first thing a sink may not do.
pub async fn conformance(bench: &dyn Bench) {
    let suite = Suite {
        bench,
        next: AtomicI64::new(1),
    };
    suite.an_event_arrives_as_it_was_written().await;
    suite.sequential_publishes_keep_their_order().await;
    suite.concurrent_publishes_are_all_acknowledged().await;
    if bench.looks_at_rows() {
        suite.hostile_rows_harm_nobody_else().await;
    }
    suite
        .a_lost_destination_ends_the_session_and_comes_back()
        .await;
    suite.a_closed_session_sends_nothing_more().await;
    suite.batches_keep_order().await;
}

struct Suite<'a> {
    bench: &'a dyn Bench,
    next: AtomicI64,
}

impl Suite<'_> {
    async fn an_event_arrives_as_it_was_written(&self) {
        let session = self.open().await;
        for change in peculiar_events() {
            let mut delivery = self.delivery(change);
            delivery.attempt = 3;
            let receipt = must(
                session.publish(&delivery, SOON).await,
                "an odd but valid event",
            );
            assert!(
                !receipt.duplicate,
                "a first hand-over was called a duplicate"
            );
            // The acknowledgement says that it is there, so it must be there now, without waiting.
            let arrived = self.bench.arrived().await;
            let found = arrived.iter().filter(|a| a.id == delivery.event.id);
            assert_eq!(
                found.collect::<Vec<_>>(),
                [&Arrived::of(&delivery)],
                "an acknowledged event is not in the destination exactly as it was written"
            );
        }
        session.close().await;
    }

    async fn sequential_publishes_keep_their_order(&self) {
        let session = self.open().await;
        let deliveries = self.deliveries(50);
        for delivery in &deliveries {
            must(session.publish(delivery, SOON).await, "a plain event");
        }
        assert_eq!(
            self.arrived_among(&deliveries).await,
            ids(&deliveries),
            "sequential publishes did not keep their order"
        );
        session.close().await;
    }

    async fn concurrent_publishes_are_all_acknowledged(&self) {
        let session = self.open().await;
        let deliveries = self.deliveries(500);
        let results = join_all(deliveries.iter().map(|d| session.publish(d, SOON))).await;
        let mut positions = BTreeSet::new();
        for result in results {
            let receipt = must(result, "one of many concurrent publishes");
            if let Some(position) = receipt.position {
                assert!(positions.insert(position), "position {position} twice");
            }
        }
        let mut arrived = self.arrived_among(&deliveries).await;
        arrived.sort_unstable();
        assert_eq!(
            arrived,
            ids(&deliveries),
            "concurrent publishes: not each exactly once"
        );
        session.close().await;
    }

    async fn hostile_rows_harm_nobody_else(&self) {
        let session = self.open().await;
        let mut hostile: Vec<(Delivery, &'static str)> = Vec::new();
        for headers in HOSTILE_HEADERS {
            let row = self.delivery(|event| event.headers = (*headers).to_owned());
            hostile.push((row, "invalid_header"));
        }
        let row = self.delivery(|event| event.content_type = Some("a\r\nb: c".to_owned()));
        hostile.push((row, "invalid_header"));
        if self.bench.has_subjects() {
            for kind in HOSTILE_KINDS {
                let row = self.delivery(|event| event.kind = (*kind).to_owned());
                hostile.push((row, "invalid_subject"));
            }
            let row = self.delivery(|event| event.kind = "k".repeat(5_000));
            hostile.push((row, "invalid_subject"));
        }
        if let Some(bytes) = self.bench.too_large() {
            let row =
                self.delivery(|event| event.payload = Payload::Bytes(vec![b'x'; bytes].into()));
            hostile.push((row, "too_large"));
        }
        // Each hostile row stands between good ones, all in flight together.
        let good = self.deliveries(hostile.len());
        let publishes = hostile.iter().zip(&good).map(|((bad, code), good)| {
            let session = &session;
            async move {
                let (bad_result, good_result) =
                    tokio::join!(session.publish(bad, SOON), session.publish(good, SOON));
                must(good_result, "the neighbour of a hostile row");
                expect_rejected(bad_result.map(|_| ()), code, bad);
            }
        });
        join_all(publishes).await;
        let mut arrived = self.arrived_among(&good).await;
        arrived.sort_unstable();
        assert_eq!(arrived, ids(&good), "neighbours of hostile rows");
        let bad: Vec<Delivery> = hostile.into_iter().map(|(bad, _)| bad).collect();
        assert!(
            self.arrived_among(&bad).await.is_empty(),
            "a rejected row arrived"
        );
        assert_not_lost(&*session).await;
        session.close().await;
    }

    async fn a_lost_destination_ends_the_session_and_comes_back(&self) {
        let session = self.open().await;
        self.bench.take_away().await;
        let deliveries = self.deliveries(20);
        let results = join_all(deliveries.iter().map(|d| session.publish(d, SOON))).await;
        for result in results {
            match result.map_err(|error| error.kind) {
                Err(PublishErrorKind::Unavailable { .. } | PublishErrorKind::Unknown) => {}
                other => panic!("a publish without a destination ended as {other:?}"),
            }
        }
        let reason = soon(session.lost(), "lost() after the destination went away").await;
        assert!(!reason.is_empty(), "a session was lost without a reason");
        expect_connection_lost(&*session, &self.delivery(|_| ())).await;
        self.bench.bring_back().await;
        let session = self.open().await;
        for delivery in &deliveries {
            must(
                session.publish(delivery, SOON).await,
                "a publish after the outage",
            );
        }
        let mut arrived = self.arrived_among(&deliveries).await;
        arrived.dedup();
        let missing = ids(&deliveries)
            .into_iter()
            .any(|id| !arrived.contains(&id));
        assert!(
            !missing,
            "an event acknowledged after an outage is not there"
        );
        session.close().await;
    }

    async fn a_closed_session_sends_nothing_more(&self) {
        let session = self.open().await;
        let deliveries = self.deliveries(300);
        let publishes = join_all(deliveries.iter().map(|d| session.publish(d, SOON)));
        // The publishes are polled first, so that some of them are under way when the session closes.
        let (results, ()) = tokio::join!(publishes, session.close());
        let acknowledged: BTreeSet<Uuid> = results
            .iter()
            .zip(&deliveries)
            .filter_map(|(result, delivery)| result.is_ok().then_some(delivery.event.id))
            .collect();
        expect_connection_lost(&*session, &self.delivery(|_| ())).await;
        soon(session.lost(), "lost() after close()").await;
        let next = self.open().await;
        let publish_marker = || async {
            must(
                next.publish(&self.delivery(|_| ()), SOON).await,
                "a later publish",
            );
            self.arrived_among(&deliveries).await
        };
        let before = publish_marker().await;
        assert!(
            acknowledged.iter().all(|id| before.contains(id)),
            "an event was acknowledged during close() and is not there"
        );
        for _ in 0..20 {
            let now = publish_marker().await;
            assert_eq!(now, before, "a closed session went on sending");
        }
        next.close().await;
    }

    async fn open(&self) -> Arc<dyn Session> {
        let opened = soon(self.bench.sink().open(), "open()").await;
        match opened {
            Ok(session) => session,
            Err(error) => panic!("open() failed: {error}"),
        }
    }

    fn delivery(&self, change: impl FnOnce(&mut Event)) -> Delivery {
        delivery_of(self.next.fetch_add(1, Ordering::Relaxed), change)
    }

    fn deliveries(&self, count: usize) -> Vec<Delivery> {
        (0..count).map(|_| self.delivery(|_| ())).collect()
    }

    /// Ids of those of `deliveries` that arrived, in the destination's order.
    async fn arrived_among(&self, deliveries: &[Delivery]) -> Vec<Uuid> {
        let asked: BTreeSet<Uuid> = deliveries.iter().map(|d| d.event.id).collect();
        let arrived = self.bench.arrived().await.into_iter().map(|a| a.id);
        arrived.filter(|id| asked.contains(id)).collect()
    }
}

type Change = fn(&mut Event);

/// Events that are valid and that careless code changes on the way.
fn peculiar_events() -> Vec<Change> {
    fn json(event: &mut Event, text: &'static str) {
        event.payload = Payload::Json(Bytes::from_static(text.as_bytes()));
    }
    fn bytes(event: &mut Event, bytes: &'static [u8]) {
        event.payload = Payload::Bytes(Bytes::from_static(bytes));
    }
    vec![
        |event| json(event, " { \"b\" : 1,\t\"a\":2, \"a\" : 3 }\n"),
        |event| json(event, "[1.0,1e2,12345678901234567890123,-0.0,1E-7]"),
        |event| json(event, r#""\/\u00e9é\ud83d\ude00😀 <\u0000>""#),
        |event| json(event, "null"),
        |event| bytes(event, &[0x00, 0xff, 0x80]),
        |event| bytes(event, b""),
        |event| bytes(event, b"null"),
        |event| bytes(event, b"\xef\xbb\xbf{}\r\nPUB x 1\r\n"),
        |event| {
            bytes(event, b"\xa1\x61\x61\x01");
            event.content_type = Some("application/cbor; profile=\"a b\"".to_owned());
        },
        |event| {
            event.headers =
                r#"{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                "x-empty":"","x-words":"a b: c, \"d\" é 😀","X-Upper":"1","x-upper":"2"}"#
                    .to_owned();
        },
        |event| event.ordering_key = None,
        |event| event.ordering_key = Some("käse / %41 *.>\n\u{1F600}".into()),
        |event| event.kind = "événement.créé".to_owned(),
        |event| event.occurred_at = Timestamp(i64::MAX),
        |event| event.seq = i64::MAX,
    ]
}

/// Header texts that no destination may be shown.
const HOSTILE_HEADERS: &[&str] = &[
    r#"[]"#,
    r#"{"a":1}"#,
    r#"{"a":"b""#,
    r#"{"":"v"}"#,
    r#"{"bad name":"v"}"#,
    r#"{"bad:name":"v"}"#,
    r#"{"é":"v"}"#,
    r#"{"x":"a\r\nNats-Rollup: all"}"#,
    r#"{"x":"a\u0000b"}"#,
    r#"{"x":" a"}"#,
    r#"{"Nats-Rollup":"all"}"#,
    r#"{"nats-msg-id":"1"}"#,
    r#"{"Nats-Expected-Last-Sequence":"1"}"#,
    r#"{"Nats-TTL":"1s"}"#,
    r#"{"OUTBOX-Seq":"1"}"#,
];

/// Kinds that make no subject.
const HOSTILE_KINDS: &[&str] = &[
    "",
    "evt.a b",
    "evt.a\nPUB evt.inj 1\nz",
    "evt.a\tb",
    "evt.a\0b",
    "evt.a\u{a0}b",
    "evt..a",
    "evt.",
    ".evt",
    "evt.*",
    ">",
    "$JS.API.STREAM.PURGE.EVENTS",
];

fn ids(deliveries: &[Delivery]) -> Vec<Uuid> {
    deliveries.iter().map(|d| d.event.id).collect()
}

fn must<T, E: std::fmt::Display>(result: Result<T, E>, what: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what} failed: {error}"),
    }
}

fn expect_rejected(result: Result<(), PublishError>, expected: &'static str, bad: &Delivery) {
    match result {
        Err(PublishError {
            kind: PublishErrorKind::Rejected { code },
            ..
        }) if code == expected => {}
        other => {
            let event = &*bad.event;
            let row: String = format!("kind {:?}, headers {}", event.kind, event.headers)
                .chars()
                .take(200)
                .collect();
            panic!("a row that must be rejected as {expected} ended as {other:?}: {row}")
        }
    }
}

async fn expect_connection_lost(session: &dyn Session, delivery: &Delivery) {
    let result = session.publish(delivery, SOON).await;
    match result.map_err(|error| error.kind) {
        Err(PublishErrorKind::Unavailable {
            connection_lost: true,
        }) => {}
        other => panic!("a publish through an ended session ended as {other:?}"),
    }
}

/// Polls `lost()` once: it must not be ready.
async fn assert_not_lost(session: &dyn Session) {
    tokio::select! {
        biased;
        reason = session.lost() => panic!("the session was lost: {reason}"),
        () = std::future::ready(()) => {}
    }
}

async fn soon<T>(future: impl Future<Output = T>, what: &str) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {SOON:?}"),
    }
}
