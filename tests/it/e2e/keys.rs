//! Keys that wait and keys that are hot: each costs only itself.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, LONG, assert_in_order, by_key};
use crate::support::eventually;

#[tokio::test]
async fn a_delayed_event_holds_its_key_and_nobody_else() {
    let bench = Bench::new(&[]).await;
    let running = bench.relay().await;
    bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    bench
        .database
        .write(
            "insert into outbox.event (kind, ordering_key, payload, available_at)
             values ('order.made', 'late', '1', now() + interval '3 s')",
        )
        .await;
    let began = Instant::now();
    bench.insert(&["late", "other"], 10).await;
    let seen = bench.wait_within(Duration::from_secs(2), 11).await;
    assert!(!by_key(&seen).contains_key("late"), "{seen:?}");
    running.drained(Duration::from_secs(1)).await;
    let seen = bench.wait_within(Duration::from_secs(5), 22).await;
    let held = began.elapsed();
    assert!(held >= Duration::from_millis(2_900), "after {held:?}");
    assert!(held < Duration::from_millis(4_000), "after {held:?}");
    assert_eq!(by_key(&seen)["late"].len(), 11);
    assert_in_order(&seen);
    assert_eq!(running.metric("missed_total"), 0.0);
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_of_fifty_thousand_slows_nobody() {
    let bench = Bench::new(&[]).await;
    let running = bench.relay().await;
    bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    bench.insert(&["hot"], 50_000).await;
    let sent = bench.sent().await;
    let cold = async |round: usize| {
        let written = bench.insert(&[&format!("cold-{round}")], 1).await;
        let (id, inserted) = (format!("orders:{}", written[0].id), Instant::now());
        let at = eventually(LONG, "a cold key's event is sent", || async {
            sent.at(&id)
                .ok_or_else(|| format!("{:?}", running.relay.board().snapshot()))
        })
        .await;
        at.saturating_duration_since(inserted)
    };
    // The first one stands right behind the fifty thousand, which reading has to pass over first: how long
    // that takes is the speed of reading (without optimisation here), and no queue.
    let passed = cold(0).await;
    assert!(passed < Duration::from_secs(3), "after {passed:?}");
    let mut waits = Vec::new();
    for round in 1..=20 {
        let before = sent.count();
        waits.push(cold(round).await);
        // On with the next one when the hot key has moved on too.
        sent.wait_for(before + 100).await;
    }
    waits.sort_unstable();
    let stored = bench.seen().await;
    let hot = by_key(&stored)["hot"].len();
    println!(
        "passed over in {passed:.0?}; {hot} of the hot key delivered meanwhile, and a cold one was sent after \
         {:.0?} (median), {:.0?} (longest)",
        waits[10], waits[19]
    );
    assert!(hot < 50_000, "the hot key was still draining");
    assert!(waits[19] < Duration::from_secs(1), "{waits:?}");
    assert_in_order(&stored);
    let report = running.relay.shutdown().await.unwrap();
    assert_eq!(report.unknown, 0);
    // What was given back is there for the next one, in order.
    let _next = bench.relay().await;
    let seen = bench.wait_within(LONG, stored.len() + 1_000).await;
    assert_in_order(&seen);
    bench.verified().await;
}
