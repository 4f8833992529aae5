//! Keys that wait and keys that are hot: each costs only itself.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, LONG, assert_in_order, by_key};

#[tokio::test]
async fn a_delayed_event_holds_its_key_and_nobody_else() {
    let bench = Bench::new(&[]).await;
    let running = bench.relay().await;
    bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    bench
        .database
        .execute(
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_of_fifty_thousand_slows_nobody() {
    let bench = Bench::new(&[]).await;
    let running = bench.relay().await;
    bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    bench.insert(&["hot"], 50_000).await;
    let mut slowest = Duration::ZERO;
    for round in 0..20 {
        let before = bench.count().await;
        let inserted = Instant::now();
        let events = bench.insert(&[&format!("cold-{round}")], 1).await;
        let sql = format!(
            "select count(*) from outbox.published where id = '{}'",
            events[0].id
        );
        while bench.number(&sql).await == 0 {
            assert!(
                inserted.elapsed() < Duration::from_secs(10),
                "a cold key waits in round {round}: {:?}",
                running.relay.board().snapshot()
            );
        }
        slowest = slowest.max(inserted.elapsed());
        // On with the next one when the hot key has moved on too.
        bench
            .wait_within(Duration::from_secs(10), before as usize + 50)
            .await;
    }
    let stored = bench.seen().await;
    let hot = by_key(&stored)["hot"].len();
    println!(
        "{hot} of the hot key delivered meanwhile; the slowest cold one was settled after {slowest:?}"
    );
    assert!(hot < 50_000, "the hot key was still draining");
    assert!(slowest < Duration::from_secs(1), "after {slowest:?}");
    assert_in_order(&stored);
    let report = running.relay.shutdown().await.unwrap();
    assert_eq!(report.unknown, 0);
    // What was given back is there for the next one, in order.
    let _next = bench.relay().await;
    let seen = bench.wait_within(LONG, stored.len() + 1_000).await;
    assert_in_order(&seen);
}
