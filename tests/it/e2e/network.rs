//! Links that work, but badly: cut into small pieces, slow, or not there yet.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, LONG, Running, assert_exactly};
use crate::support::eventually;
use crate::support::postgres;
use crate::support::proxy::{Mode, Proxy};

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A bench whose relay reaches both ends by way of proxies.
struct Links {
    bench: Bench,
    database: Proxy,
    broker: Proxy,
}

impl Links {
    async fn new(settings: &[(&str, &str)]) -> Self {
        let bench = Bench::new(settings).await;
        let server = postgres::server().await;
        let database = Proxy::to(server.address()).await;
        let broker = Proxy::to(bench.nats.address()).await;
        let to_database = bench.database.url_through(database.port());
        let to_broker = format!("nats://{}", broker.address());
        let bench = bench.with(&[
            ("databases.orders.url", &to_database),
            ("sinks.events.url", &to_broker),
        ]);
        Self {
            bench,
            database,
            broker,
        }
    }

    fn set(&self, mode: Mode) {
        self.database.set(mode);
        self.broker.set(mode);
    }

    /// No lease was taken anew, and no outcome came too late.
    async fn assert_calm(&self, running: &Running) {
        let tokens = "select max(token) from outbox.lease";
        assert_eq!(self.bench.number(tokens).await, 1);
        assert_eq!(running.metric("lease_lost_total"), 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_that_cut_everything_into_slices_change_nothing() {
    for mode in ["auto", "single"] {
        let links = Links::new(&[("sinks.events.mode", mode)]).await;
        links.set(Mode::Slice(9));
        let sent = links.bench.sent().await;
        let running = links.bench.relay().await;
        let mut written = links.bench.insert(&KEYS, 20).await;
        links.bench.wait_until(20).await;
        written.extend(links.bench.insert(&KEYS, 8).await);
        let seen = links.bench.wait_for(written.len()).await;
        running.drained(LONG).await;
        assert_exactly(&written, &seen);
        links.assert_calm(&running).await;
        assert_eq!(sent.duplicates(), 0);
        links.set(Mode::Pass);
        links.bench.verified().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_that_let_little_through_lose_no_lease() {
    let links = Links::new(&[
        ("lease.ttl", "4s"),
        ("sinks.events.publish_timeout", "1900ms"),
    ])
    .await;
    let running = links.bench.relay().await;
    let mut written = links.bench.insert(&["warm"], 1).await;
    links.bench.wait_for(1).await;
    links.set(Mode::Trickle(20_000));
    let began = Instant::now();
    written.extend(links.bench.insert(&KEYS, 40).await);
    let seen = links.bench.wait_for(written.len()).await;
    running.drained(LONG).await;
    let took = began.elapsed();
    println!("{} events took {took:?}", written.len());
    assert!(
        took > Duration::from_secs(4),
        "no lease had to be renewed: {took:?}"
    );
    assert_exactly(&written, &seen);
    // A batch that takes longer than a publish may is sent again, which is no matter of the lease.
    links.assert_calm(&running).await;
    links.set(Mode::Pass);
    links.bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_that_are_refused_are_waited_for() {
    let links = Links::new(&[]).await;
    links.set(Mode::Refuse);
    let running = links.bench.relay().await;
    let mut written = links.bench.insert(&KEYS, 20).await;
    for round in 1..=3 {
        eventually(LONG, "the relay has found nobody", || async {
            let shown = running.relay.board().snapshot();
            let reasons = [&shown.databases[0].reason, &shown.sinks[0].reason];
            let refused = |reason: &&Option<String>| {
                let reason = reason.as_deref().unwrap_or_default();
                reason.to_lowercase().contains("refused")
            };
            reasons
                .iter()
                .all(refused)
                .then_some(())
                .ok_or(format!("{reasons:?}"))
        })
        .await;
        links.set(Mode::Pass);
        let healed = Instant::now();
        links.bench.wait_until(written.len() as u64).await;
        let took = healed.elapsed();
        println!("round {round}: went on after {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        tokio::join!(
            links.database.cut_then(Mode::Refuse),
            links.broker.cut_then(Mode::Refuse)
        );
        written.extend(links.bench.insert(&KEYS, 20).await);
    }
    links.set(Mode::Pass);
    let seen = links.bench.wait_for(written.len()).await;
    running.drained(LONG).await;
    assert_exactly(&written, &seen);
    links.bench.verified().await;
}
