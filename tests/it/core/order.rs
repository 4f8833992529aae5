//! Order per key, late commits, delays, poison and hot keys.

use std::time::Duration;

use outboxd::relay::GapGuard;
use outboxd::sink::PublishError;
use outboxd::sink::memory::{Answer, Gate, Memory as MemorySink};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::testing::faults::Op;
use outboxd::testing::source::NewRow;

use super::bench::{Bench, by_key, number, numbers, row, start_over};

#[tokio::test]
async fn every_key_arrives_in_order_and_the_outbox_is_empty() {
    let bench = Bench::start().await;
    for n in 1..=50 {
        for key in 0..40 {
            bench.insert(&format!("k{key}"), n..=n);
        }
    }
    let received = bench.received(2_000).await;
    assert_eq!(received.len(), 2_000, "no duplicates");
    let keys = by_key(&received);
    assert_eq!(keys.len(), 40);
    assert!(
        keys.values()
            .all(|list| list.is_sorted() && list.len() == 50)
    );
    bench.emptied().await;
}

#[tokio::test]
async fn events_without_a_key_do_not_wait_for_each_other() {
    let bench = Bench::start().await;
    let gate = Gate::closed();
    let held = gate.clone();
    bench.sink.on(move |delivery| {
        (delivery.event.kind == "slow").then(|| Answer::Hold(held.clone(), Box::new(Answer::Take)))
    });
    bench
        .source
        .insert(&[NewRow::json("slow", "{\"n\":0}")])
        .unwrap();
    for n in 1..=20 {
        let text = format!("{{\"n\":{n}}}");
        bench.source.insert(&[NewRow::json("fast", &text)]).unwrap();
    }
    bench.received(20).await;
    gate.open();
    bench.received(21).await;
    bench.emptied().await;
}

#[tokio::test]
async fn a_late_commit_is_delivered_and_counted_as_an_inversion() {
    let bench = Bench::start().await;
    let mut late = bench.source.begin();
    late.insert(&row("k", 1)).unwrap();
    bench.insert("k", 2..=2);
    bench.received(1).await;
    bench.emptied().await;
    late.commit();
    let received = bench.received(2).await;
    assert_eq!(numbers(&received, "k"), [2, 1]);
    bench.emptied().await;
}

#[tokio::test]
async fn hold_waits_for_the_transaction_that_may_show_a_lower_seq() {
    let bench = Bench::with(|options| options.databases[0].gap_guard = GapGuard::Hold).await;
    bench.insert("first", 1..=1);
    bench.received(1).await;
    let mut late = bench.source.begin();
    late.insert(&row("k", 1)).unwrap();
    bench.insert("k", 2..=2);
    let mut rolled_back = bench.source.begin();
    rolled_back.insert(&row("k", 3)).unwrap();
    bench.insert("k", 4..=4);
    // The relay has looked at the gap more than once by the time it has asked for writers thrice.
    let before = bench.faults.count(Op::Writers);
    bench.calls(Op::Writers, before + 3).await;
    assert_eq!(bench.sink.received().len(), 1);
    late.commit();
    bench.received(3).await;
    rolled_back.rollback();
    let received = bench.received(4).await;
    assert_eq!(numbers(&received, "k"), [1, 2, 4]);
    bench.emptied().await;
}

#[tokio::test]
async fn a_row_a_thousand_numbers_back_that_commits_late_is_not_lost() {
    let bench = Bench::start().await;
    let mut late = bench.source.begin();
    late.insert(&row("late", 1)).unwrap();
    for n in 0..1_000 {
        bench.insert(&format!("k{n}"), n..=n);
    }
    bench.received(1_000).await;
    late.commit();
    let received = bench.received(1_001).await;
    assert_eq!(numbers(&received, "late"), [1]);
    bench.emptied().await;
}

#[tokio::test]
async fn a_delayed_event_holds_its_key_and_nobody_else() {
    let bench = Bench::start().await;
    let delay = Duration::from_millis(700);
    bench.insert("k", 1..=1);
    bench.source.insert(&[row("k", 2).delayed(delay)]).unwrap();
    bench.insert("k", 3..=3);
    bench.insert("other", 1..=1);
    let early = bench.received(2).await;
    assert_eq!(by_key(&early).len(), 2, "the head of k and the other key");
    let received = bench.received(4).await;
    assert_eq!(numbers(&received, "k"), [1, 2, 3]);
    let waited = received[2].at - received[0].at;
    assert!(waited >= delay - Duration::from_millis(50), "{waited:?}");
    bench.emptied().await;
}

/// Figures are shown from time to time, and when there is nothing more to do: whoever waited for that reads them next.
#[tokio::test]
async fn what_waits_is_shown_when_all_that_is_due_is_delivered() {
    for _ in 0..5 {
        let (source, sink) = (MemorySource::new("orders", 16), MemorySink::new());
        let late = row("late", 1).delayed(Duration::from_secs(3_600));
        source.insert(&[row("k", 1), late, row("k", 2)]).unwrap();
        let (relay, _) = start_over(&source, &sink, |_| {}).await;
        relay.drained().await;
        let shown = relay.board().snapshot().feeds;
        assert_eq!((shown[0].parked, shown[0].in_flight), (1, 0));
        assert_eq!(sink.received().len(), 2);
    }
}

#[tokio::test]
async fn a_poison_head_costs_only_its_key_and_reads_do_not_grow_with_what_waits_behind_it() {
    let bench = Bench::with(|options| {
        // It stays poison for the whole test.
        options.routes = retrying(1_000_000, Duration::from_millis(100));
    })
    .await;
    bench.sink.on(|delivery| {
        let poison = delivery.event.ordering_key.as_deref() == Some("poison");
        poison.then(|| Answer::Fail(PublishError::retryable("boom")))
    });
    let rows: Vec<_> = (1..=10_000).map(|n| row("poison", n)).collect();
    for chunk in rows.chunks(500) {
        bench.source.insert(chunk).unwrap();
    }
    bench.insert("good", 1..=1_000);
    let received = bench.received(1_000).await;
    assert_eq!(numbers(&received, "good").len(), 1_000);
    // From here on only the poison key moves; a thousand rows more of another key cost what they cost.
    let before = bench.sink.handed_over().len();
    bench.handed_over(before + 5).await;
    let attempts: Vec<u32> = bench
        .sink
        .handed_over()
        .iter()
        .filter(|item| item.delivery.event.ordering_key.as_deref() == Some("poison"))
        .map(number)
        .collect();
    assert!(
        attempts.iter().all(|n| *n == 1),
        "only the head is ever tried"
    );
    assert_eq!(bench.source.pending(), 10_000);
    let snapshot = bench.relay.board().snapshot();
    assert!(
        snapshot.feeds[0].in_flight < 100,
        "what waits is in the table: {snapshot:?}"
    );
}

#[tokio::test]
async fn a_hot_key_slows_nobody() {
    let bench = Bench::start().await;
    let rows: Vec<_> = (1..=8_000).map(|n| row("hot", n)).collect();
    for chunk in rows.chunks(1_000) {
        bench.source.insert(chunk).unwrap();
    }
    bench.insert("other", 1..=1);
    let received = bench
        .sink
        .wait_until(super::bench::LONG, |list| {
            !numbers(list, "other").is_empty()
        })
        .await
        .unwrap();
    let hot = numbers(&received, "hot").len();
    assert!(
        hot < 8_000,
        "the other key did not wait for all of the hot one"
    );
    let received = bench.received(8_001).await;
    assert_eq!(received.len(), 8_001);
    assert!(numbers(&received, "hot").is_sorted());
    bench.emptied().await;
}

#[tokio::test]
async fn a_failed_head_is_tried_again_before_anything_behind_it() {
    let bench = Bench::start().await;
    let mut left = 2;
    bench.sink.on(move |delivery| {
        (delivery.event.seq == 1 && left > 0).then(|| {
            left -= 1;
            Answer::Fail(PublishError::retryable("503"))
        })
    });
    bench.insert("k", 1..=3);
    let received = bench.received(3).await;
    assert_eq!(numbers(&received, "k"), [1, 2, 3]);
    assert_eq!(
        received[0].delivery.attempt, 3,
        "two charged failures before"
    );
    assert_eq!(received[1].delivery.attempt, 1);
    bench.emptied().await;
}

#[tokio::test]
async fn ten_thousand_delayed_events_due_at_once_leave_once_each() {
    let bench = Bench::start().await;
    let rows: Vec<_> = (0..10_000)
        .map(|n| row(&format!("k{n}"), n).delayed(Duration::from_millis(500)))
        .collect();
    bench.source.insert(&rows).unwrap();
    let received = bench.received(10_000).await;
    assert_eq!(received.len(), 10_000);
    assert!(received.iter().all(|item| item.delivery.attempt == 1));
    bench.emptied().await;
}

#[tokio::test]
async fn more_delayed_keys_than_memory_keeps_are_found_again_in_order() {
    let bench = Bench::with(|options| options.databases[0].max_parked = 50).await;
    for n in 0..400 {
        let first = row(&format!("k{n}"), 1).delayed(Duration::from_millis(300 + n));
        let key = format!("k{n}");
        bench.source.insert(&[first, row(&key, 2)]).unwrap();
    }
    let alone: Vec<_> = (0..400)
        .map(|n| NewRow::json("a", "{\"n\":1}").delayed(Duration::from_millis(300 + n)))
        .collect();
    bench.source.insert(&alone).unwrap();
    // A key whose delayed head was dropped is not taken for a new one when its next event is read.
    for n in 0..400 {
        bench.insert(&format!("k{n}"), 3..=3);
    }
    let received = bench.received(1_600).await;
    let mut keys = by_key(&received);
    assert_eq!(keys.remove("").map(|list| list.len()), Some(400));
    assert_eq!(keys.len(), 400);
    for (key, list) in keys {
        assert_eq!(list, [1, 2, 3], "{key}");
    }
    assert_eq!(received.len(), 1_600, "no duplicates");
    bench.emptied().await;
}

fn retrying(max_attempts: u32, pause: Duration) -> outboxd::route::Routes {
    outboxd::route::Routes::new(vec![outboxd::route::Route {
        name: "all".into(),
        kinds: vec!["*".into()],
        sinks: std::sync::Arc::from([std::sync::Arc::from("events")]),
        retry: outboxd::retry::Policy {
            max_attempts,
            base: pause,
            max: pause,
            ..outboxd::retry::Policy::default()
        },
    }])
}

#[tokio::test]
async fn what_is_passed_over_is_read_in_large_pieces() {
    let bench = Bench::start().await;
    let gate = Gate::closed();
    let held = gate.clone();
    bench.sink.on(move |delivery| {
        let hot = delivery.event.ordering_key.as_deref() == Some("hot");
        hot.then(|| Answer::Hold(held.clone(), Box::new(Answer::Take)))
    });
    bench.insert("hot", 1..=1);
    bench.handed_over(1).await;
    let rows: Vec<NewRow> = (2..=30_000).map(|n| row("hot", n)).collect();
    let before = bench.faults.count(Op::Read);
    bench.source.insert(&rows).unwrap();
    bench.insert("cold", 1..=1);
    bench.received(1).await;
    // Two small ones until it shows, then 5,000 rows each; and some that found nothing yet, or nothing more.
    let reads = bench.faults.count(Op::Read) - before;
    assert!(reads <= 20, "{reads} reads");
}
