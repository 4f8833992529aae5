//! Batches over a connection that ends, or falls silent, at any byte: what the answers say is so, and what they do not
//! say is mended by publishing it again as the relay does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use bytes::Bytes;
use outboxd::sink::{Delivery, PublishErrorKind, Session};
use outboxd::testing::sink::delivery;
use tokio::time::Instant;

use super::bench::{SOON, atomic, batched, create, open};
use super::lane::{Results, events};
use crate::support::nats;
use crate::support::proxy::{Direction, Mode, Proxy};

const KEYS: i64 = 5;
const COUNT: i64 = 300;

/// A stream behind a network that fails.
struct Bench {
    server: nats::Server,
    network: Proxy,
    client: async_nats::Client,
    from: i64,
    opened: Option<Instant>,
}

/// What became of the batches, over a whole test.
#[derive(Debug, Default)]
struct Tally {
    ok: usize,
    unknown: usize,
    behind: usize,
    unavailable: usize,
    /// Unknown ones that were stored all the same.
    stored: usize,
}

impl Bench {
    async fn over(stream: Config) -> Self {
        let server = nats::Server::start().await;
        create(&server, stream).await;
        Self {
            network: Proxy::to(server.address()).await,
            client: server.client().await,
            server,
            from: 1,
            opened: None,
        }
    }

    /// Keeps a batch of somebody else open, so that the server acknowledges ours in many small steps.
    async fn share(&mut self) {
        const SHORTER_THAN_A_BATCH_LIVES: Duration = Duration::from_secs(4);
        let now = Instant::now();
        if self
            .opened
            .is_some_and(|opened| now - opened < SHORTER_THAN_A_BATCH_LIVES)
        {
            return;
        }
        self.opened = Some(now);
        let inbox = self.client.new_inbox();
        let reply = format!("{inbox}.other.500.fail.1.0.$FI");
        let body = Bytes::from_static(b"{}");
        self.client
            .publish_with_reply("evt.other", reply, body)
            .await
            .unwrap();
        self.client.flush().await.unwrap();
    }

    /// Seqs of a batch that are stored, by key, in the order of the stream.
    async fn stored(&self, batch: &[Delivery]) -> BTreeMap<String, Vec<i64>> {
        let range = batch[0].event.seq..=batch[batch.len() - 1].event.seq;
        let mut keys: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for message in self.server.stored("EVT").await {
            let Some(seq) = message.header("Outbox-Seq") else {
                continue;
            };
            let seq: i64 = seq.parse().unwrap();
            if range.contains(&seq) {
                let key = message.header("Outbox-Key").unwrap().to_owned();
                keys.entry(key).or_default().push(seq);
            }
        }
        keys
    }

    /// One batch through trouble, its answers checked against the stream, and then everything published again.
    async fn trial(&mut self, trouble: impl FnOnce(&Proxy), timeout: Duration, tally: &mut Tally) {
        let batch = events(self.from, COUNT, KEYS);
        self.from += COUNT;
        let session = open(format!("nats://{}", self.network.address())).await;
        trouble(&self.network);
        let results = session.publish_batch(&batch, timeout, timeout).await;
        assert_eq!(results.len(), batch.len());
        session.close().await;
        self.network.set(Mode::Pass);

        let session = open(self.server.url()).await;
        self.compare(&batch, &results, tally).await;
        // What is not unknown does not change any more.
        session
            .publish(&delivery(1_000_000 + self.from), SOON)
            .await
            .unwrap();
        self.compare(&batch, &results, &mut Tally::default()).await;
        again(&session, &batch, &results).await;
        let stored = self.stored(&batch).await;
        assert_eq!(stored, by_key(&batch), "after publishing again");
        session.close().await;
        // Keeps the stream short, and what it knows.
        let jetstream = self.server.jetstream().await;
        let stream = jetstream.get_stream("EVT").await.unwrap();
        stream.purge().await.unwrap();
    }

    async fn compare(&self, batch: &[Delivery], results: &Results, tally: &mut Tally) {
        let by_stream = self.stored(batch).await;
        let stored: BTreeSet<i64> = by_stream.values().flatten().copied().collect();
        let mut failed = BTreeSet::new();
        for (delivery, result) in batch.iter().zip(results) {
            let seq = delivery.event.seq;
            let there = stored.contains(&seq);
            let key = delivery.event.ordering_key.clone();
            match result.as_ref().map_err(|error| &error.kind) {
                Ok(_) => {
                    assert!(there, "{seq} is acknowledged and not stored");
                    assert!(!failed.contains(&key), "{seq} is behind one that failed");
                    tally.ok += 1;
                    continue;
                }
                Err(PublishErrorKind::Unknown) => {
                    tally.unknown += 1;
                    tally.stored += usize::from(there);
                }
                Err(kind @ PublishErrorKind::Behind) => {
                    assert!(!there, "{seq} is {kind:?} and stored");
                    assert!(!failed.is_empty(), "{seq} is behind nothing");
                    tally.behind += 1;
                }
                Err(kind @ PublishErrorKind::Unavailable { .. }) => {
                    assert!(!there, "{seq} is {kind:?} and stored");
                    tally.unavailable += 1;
                }
                Err(kind) => panic!("{seq}: {kind:?}"),
            }
            failed.insert(key);
        }
        for (key, sent) in by_key(batch) {
            let stored = by_stream.get(&key).map(Vec::as_slice).unwrap_or_default();
            assert!(
                sent.starts_with(stored),
                "{key}: {stored:?} is no beginning"
            );
        }
    }
}

fn by_key(batch: &[Delivery]) -> BTreeMap<String, Vec<i64>> {
    let mut keys: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for delivery in batch {
        let key = delivery.event.ordering_key.as_deref().unwrap().to_owned();
        keys.entry(key).or_default().push(delivery.event.seq);
    }
    keys
}

/// Publishes what is not known to be stored: of each key those in doubt singly, until the stream did not know one; the
/// rest as a batch.
async fn again(session: &Arc<dyn Session>, batch: &[Delivery], results: &Results) {
    let mut rest = Vec::new();
    let mut certain = BTreeSet::new();
    for (delivery, result) in batch.iter().zip(results) {
        let Err(error) = result else { continue };
        let key = delivery.event.ordering_key.clone();
        if error.kind == PublishErrorKind::Unknown && !certain.contains(&key) {
            let receipt = session.publish(delivery, SOON).await.unwrap();
            if !receipt.duplicate {
                certain.insert(key);
            }
        } else {
            rest.push(delivery.clone());
        }
    }
    for result in session.publish_batch(&rest, SOON, SOON).await {
        result.unwrap();
    }
}

/// Byte counts that grow from every one to wide steps.
fn growing(from: usize, up_to: usize, count: usize) -> impl Iterator<Item = usize> {
    let steps = (0..count).map(move |n| {
        let part = n as f64 / (count - 1) as f64;
        from + ((up_to - from) as f64 * part * part) as usize
    });
    steps.collect::<BTreeSet<_>>().into_iter()
}

/// More than a batch's messages are on the wire, and its answers.
const SENT: usize = 140_000;
const ANSWERED: usize = 1_600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_cut_at_any_byte_to_the_server_is_mended() {
    let mut bench = Bench::over(batched()).await;
    let mut tally = Tally::default();
    for bytes in growing(0, SENT, 60) {
        bench.share().await;
        let cut = |network: &Proxy| network.set_after(bytes, Direction::ToServer, Mode::Cut);
        bench.trial(cut, SOON, &mut tally).await;
    }
    println!("{tally:?}");
    assert!(
        tally.ok > 0 && tally.stored > 0 && tally.behind > 0,
        "{tally:?}"
    );
    assert!(tally.unknown > tally.stored, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_cut_at_any_byte_of_the_answers_is_mended() {
    let mut bench = Bench::over(batched()).await;
    let mut tally = Tally::default();
    for bytes in growing(0, ANSWERED, 60) {
        bench.share().await;
        let cut = |network: &Proxy| network.set_after(bytes, Direction::ToClient, Mode::Cut);
        bench.trial(cut, SOON, &mut tally).await;
    }
    println!("{tally:?}");
    assert!(tally.ok > 0 && tally.stored > 0, "{tally:?}");
}

/// Short, since each of these waits for its end.
const PATIENCE: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_whose_answers_stop_at_any_byte_is_mended() {
    let mut bench = Bench::over(batched()).await;
    let mut tally = Tally::default();
    for bytes in growing(0, ANSWERED, 20) {
        bench.share().await;
        let mute = |network: &Proxy| network.set_after(bytes, Direction::ToClient, Mode::Mute);
        bench.trial(mute, PATIENCE, &mut tally).await;
    }
    println!("{tally:?}");
    assert!(tally.ok > 0 && tally.stored > 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_falls_silent_at_any_byte_to_the_server_is_mended() {
    let mut bench = Bench::over(batched()).await;
    let mut tally = Tally::default();
    for bytes in growing(0, SENT, 20) {
        bench.share().await;
        let hole = |network: &Proxy| network.set_after(bytes, Direction::ToServer, Mode::Hole);
        bench.trial(hole, PATIENCE, &mut tally).await;
    }
    println!("{tally:?}");
    assert!(tally.ok > 0 && tally.unknown > 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_atomic_batch_cut_at_any_byte_is_mended() {
    let mut bench = Bench::over(atomic()).await;
    let mut tally = Tally::default();
    for bytes in growing(0, SENT, 30) {
        let cut = |network: &Proxy| network.set_after(bytes, Direction::ToServer, Mode::Cut);
        bench.trial(cut, SOON, &mut tally).await;
    }
    // The answers are two: one to the first message, and one to the commit.
    for bytes in growing(0, 250, 30) {
        let cut = |network: &Proxy| network.set_after(bytes, Direction::ToClient, Mode::Cut);
        bench.trial(cut, SOON, &mut tally).await;
    }
    for bytes in growing(0, 250, 6) {
        let mute = |network: &Proxy| network.set_after(bytes, Direction::ToClient, Mode::Mute);
        bench.trial(mute, PATIENCE, &mut tally).await;
    }
    println!("{tally:?}");
    assert!(
        tally.ok > 0 && tally.unknown > 0 && tally.stored > 0,
        "{tally:?}"
    );
}
