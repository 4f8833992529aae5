//! Several sinks, and routes that change between one start of the relay and the next.

use std::sync::Arc;
use std::time::Duration;

use outboxd::relay::{self, Relay, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::PublishError;
use outboxd::sink::memory::{Answer, Memory as MemorySink};
use outboxd::source::admin::{Admin, Discarded, DiscardedFilter};
use outboxd::source::memory::Memory as MemorySource;

use super::bench::{LONG, by_key, options_over, row};
use crate::support::eventually;

/// A source and two sinks, which outlive the relays between them.
struct Bench {
    source: MemorySource,
    first: MemorySink,
    second: MemorySink,
}

impl Bench {
    fn new() -> Self {
        Self {
            source: MemorySource::new("orders", 16),
            first: MemorySink::new(),
            second: MemorySink::new(),
        }
    }

    /// A relay whose routes are `kinds` to sinks, with the sinks that these name.
    async fn relay(&self, routes: &[(&str, &[&str])]) -> Relay {
        let mut options = options_over(&self.source, &self.first);
        let named = |sink: &str| routes.iter().any(|(_, sinks)| sinks.contains(&sink));
        options.sinks = [("first", &self.first), ("second", &self.second)]
            .into_iter()
            .filter(|(name, _)| named(name))
            .map(|(name, sink)| SinkOptions::new(name, Arc::new(sink.clone())))
            .collect();
        let route = |(kinds, sinks): &(&str, &[&str])| Route {
            name: kinds.replace(['.', '*'], ""),
            kinds: vec![(*kinds).to_owned()],
            sinks: sinks.iter().map(|sink| Arc::from(*sink)).collect(),
            retry: Policy {
                base: Duration::from_millis(20),
                max: Duration::from_secs(60),
                ..Policy::default()
            },
        };
        options.routes = Routes::new(routes.iter().map(route).collect());
        relay::start(options).await.unwrap()
    }

    fn insert(&self, key: &str, numbers: std::ops::RangeInclusive<u32>) {
        for n in numbers {
            self.source.insert(&[row(key, n)]).unwrap();
        }
    }

    async fn pending(&self, wanted: usize) {
        eventually(LONG, "so many are pending", || async {
            let pending = self.source.pending();
            (pending == wanted)
                .then_some(())
                .ok_or(format!("{pending} are"))
        })
        .await;
    }

    async fn discarded(&self) -> Vec<Discarded> {
        let all = DiscardedFilter::default();
        self.source.discarded(&all, 1_000).await.unwrap()
    }
}

const BOTH: &[(&str, &[&str])] = &[("*", &["first", "second"])];

#[tokio::test]
async fn a_sink_that_is_down_delays_nobody_elses_feed() {
    let bench = Bench::new();
    bench.second.go_down();
    let relay = bench.relay(BOTH).await;
    bench.insert("k", 1..=2_000);
    let received = bench.first.wait_for(2_000, LONG).await.unwrap();
    assert!(by_key(&received)["k"].is_sorted());
    bench.second.come_up();
    let received = bench.second.wait_for(2_000, LONG).await.unwrap();
    assert!(by_key(&received)["k"].is_sorted());
    bench.pending(0).await;
    assert_eq!(bench.first.received().len(), 2_000, "nothing twice");
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_restart_repeats_nothing_that_a_sink_has() {
    let bench = Bench::new();
    bench.second.go_down();
    for round in 0..3 {
        let relay = bench.relay(BOTH).await;
        bench.insert("k", round * 10 + 1..=round * 10 + 10);
        let count = (round as usize + 1) * 10;
        bench.first.wait_for(count, LONG).await.unwrap();
        relay.shutdown().await.unwrap();
    }
    bench.second.come_up();
    let relay = bench.relay(BOTH).await;
    bench.second.wait_for(30, LONG).await.unwrap();
    bench.pending(0).await;
    assert_eq!(bench.first.received().len(), 30);
    assert_eq!(bench.second.received().len(), 30);
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_discard_for_one_sink_takes_nothing_from_the_other() {
    let bench = Bench::new();
    bench
        .second
        .on(|_| Some(Answer::Fail(PublishError::rejected("too_large", "no"))));
    let relay = bench.relay(BOTH).await;
    bench.insert("k", 1..=5);
    let received = bench.first.wait_for(5, LONG).await.unwrap();
    assert_eq!(by_key(&received)["k"], [1, 2, 3, 4, 5]);
    bench.pending(0).await;
    let discarded = bench.discarded().await;
    assert_eq!(discarded.len(), 5);
    assert!(discarded.iter().all(|event| event.sink == "second"));
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_share_of_a_removed_sink_ends_as_cancelled() {
    let bench = Bench::new();
    bench.second.go_down();
    let relay = bench.relay(BOTH).await;
    bench.insert("k", 1..=700);
    bench.insert("other", 1..=700);
    bench.first.wait_for(1_400, LONG).await.unwrap();
    relay.shutdown().await.unwrap();
    assert_eq!(bench.source.pending(), 1_400);

    let relay = bench.relay(&[("*", &["first"])]).await;
    // Drained includes it: a run until everything is done does not end before.
    tokio::time::timeout(LONG, relay.drained()).await.unwrap();
    assert_eq!(bench.source.pending(), 0);
    let all = DiscardedFilter::default();
    let discarded = bench.source.discarded(&all, 2_000).await.unwrap();
    assert_eq!(discarded.len(), 1_400);
    assert!(discarded.iter().all(|event| event.sink == "second"
        && event.reason == "cancelled"
        && event.attempts == 0
        && event.last_error.contains("no longer leads to sink second")));
    assert_eq!(bench.first.received().len(), 1_400, "nothing twice");
    let feeds = relay.board().snapshot().feeds;
    assert!(
        feeds.iter().all(|feed| feed.sink == "first"),
        "no feed of a sink that is gone: {feeds:?}"
    );
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_new_route_takes_what_the_old_one_did_not_deliver() {
    let bench = Bench::new();
    // One that failed is remembered; those behind it were never begun.
    bench
        .first
        .on(|_| Some(Answer::Fail(PublishError::retryable("not today"))));
    let relay = bench.relay(&[("*", &["first"])]).await;
    bench.insert("k", 1..=3);
    eventually(LONG, "the failure is written", || async {
        let begun = outboxd::source::Source::begun(&bench.source, 0, 10)
            .await
            .unwrap();
        let attempts = begun
            .events
            .first()
            .map_or(0, |event| event.open[0].attempts);
        (attempts >= 3).then_some(()).ok_or(format!("{begun:?}"))
    })
    .await;
    relay.shutdown().await.unwrap();

    let relay = bench.relay(&[("*", &["second"])]).await;
    let received = bench.second.wait_for(3, LONG).await.unwrap();
    assert_eq!(by_key(&received)["k"], [1, 2, 3]);
    bench.pending(0).await;
    let discarded = bench.discarded().await;
    assert_eq!(discarded.len(), 1, "only what was begun is cancelled");
    assert_eq!(discarded[0].sink, "first");
    assert_eq!(discarded[0].reason, "cancelled");
    assert!(discarded[0].attempts >= 3);
    assert!(discarded[0].last_error.contains("not today"));
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_has_no_route_stays_and_blocks_nothing() {
    let bench = Bench::new();
    bench.second.go_down();
    let relay = bench.relay(BOTH).await;
    bench.insert("k", 1..=1);
    bench.first.wait_for(1, LONG).await.unwrap();
    relay.shutdown().await.unwrap();

    let relay = bench.relay(&[("other.*", &["first", "second"])]).await;
    bench.insert("k", 2..=2);
    let mut routed = row("k", 3);
    routed.kind = "other.n".to_owned();
    bench.source.insert(&[routed]).unwrap();
    let received = bench.first.wait_for(2, LONG).await.unwrap();
    assert_eq!(
        by_key(&received)["k"],
        [1, 3],
        "the one between has no route"
    );
    assert_eq!(bench.source.pending(), 3);
    assert!(
        bench.discarded().await.is_empty(),
        "nothing is cancelled without a route"
    );
    eventually(LONG, "what has no route is shown", || async {
        let databases = relay.board().snapshot().databases;
        let shown = databases[0].unrouted == ["test.n"];
        shown.then_some(()).ok_or(format!("{databases:?}"))
    })
    .await;
    relay.shutdown().await.unwrap();

    // The route comes back: one sink had the first event already.
    bench.second.come_up();
    let relay = bench.relay(BOTH).await;
    bench.pending(0).await;
    assert_eq!(by_key(&bench.second.received())["k"], [1, 2, 3]);
    assert_eq!(bench.first.received().len(), 3, "nothing twice");
    relay.shutdown().await.unwrap();
}
