//! What failures cost: whose fault they are, what is charged, what is set aside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outboxd::sink::memory::Answer;
use outboxd::sink::{PublishError, Receipt};
use outboxd::source::admin::{Admin, DiscardedFilter};
use outboxd::source::{Source, SourceErrorKind};
use outboxd::status::Gate;
use outboxd::testing::faults::{Op, When};

use super::bench::{Bench, LONG, by_key, numbers, row};
use crate::support::eventually;

async fn discarded(bench: &Bench) -> Vec<outboxd::source::admin::Discarded> {
    bench
        .source
        .discarded(&DiscardedFilter::default(), 100)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_rejected_event_is_set_aside_at_once_and_its_key_goes_on() {
    let bench = Bench::start().await;
    bench.sink.on(|delivery| {
        (delivery.event.seq == 2).then(|| {
            Answer::Fail(PublishError::rejected(
                "too_large",
                "2 MB is more than 1 MB",
            ))
        })
    });
    bench.insert("k", 1..=3);
    let received = bench.received(2).await;
    assert_eq!(numbers(&received, "k"), [1, 3]);
    bench.emptied().await;
    let list = discarded(&bench).await;
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].reason, "permanent");
    assert_eq!(list[0].code.as_deref(), Some("too_large"));
    assert!(list[0].last_error.contains("more than 1 MB"));
}

#[tokio::test]
async fn the_next_event_of_a_key_waits_until_the_discard_before_it_is_committed() {
    let bench = Bench::start().await;
    bench.faults.delay(Op::Settle, Duration::from_millis(200));
    let (source, left) = (bench.source.clone(), Arc::new(AtomicUsize::new(usize::MAX)));
    let seen = Arc::clone(&left);
    bench.sink.on(move |delivery| {
        if delivery.event.kind == "poison" {
            return Some(Answer::Fail(PublishError::rejected("too_large", "no")));
        }
        seen.store(source.pending(), Ordering::SeqCst);
        None
    });
    let mut poison = row("k", 1);
    poison.kind = "poison".to_owned();
    bench.source.insert(&[poison]).unwrap();
    bench.insert("k", 2..=2);
    bench.received(1).await;
    assert_eq!(
        left.load(Ordering::SeqCst),
        1,
        "the poison was out of the outbox when the next one left"
    );
}

#[tokio::test]
async fn the_retry_budget_ends_in_a_discard_and_the_key_goes_on() {
    let bench = Bench::start().await;
    bench.sink.on(|delivery| {
        (delivery.event.seq == 1).then(|| Answer::Fail(PublishError::retryable("500")))
    });
    bench.insert("k", 1..=2);
    let received = bench.received(1).await;
    assert_eq!(numbers(&received, "k"), [2]);
    bench.emptied().await;
    let list = discarded(&bench).await;
    assert_eq!(
        (list[0].reason.as_str(), list[0].attempts),
        ("retry_budget", 5)
    );
}

#[tokio::test]
async fn an_outage_of_the_sink_charges_and_discards_nothing() {
    let bench = Bench::start().await;
    bench.insert("warm", 1..=1);
    bench.received(1).await;
    bench.sink.go_down();
    for key in 0..100 {
        bench.insert(&format!("k{key}"), 1..=3);
    }
    let board = bench.relay.board();
    eventually(LONG, "the gate is shown as closed", || async {
        let gate = board.snapshot().feeds[0].gate;
        (gate != Gate::Open)
            .then_some(())
            .ok_or(format!("{gate:?}"))
    })
    .await;
    assert!(
        !board.ready().is_empty(),
        "not ready while nothing can leave"
    );
    bench.sink.come_up();
    let received = bench.received(301).await;
    assert!(by_key(&received).values().all(|list| list.is_sorted()));
    assert!(
        received.iter().all(|item| item.delivery.attempt == 1),
        "no attempt was charged"
    );
    bench.emptied().await;
    assert!(discarded(&bench).await.is_empty());
}

#[tokio::test]
async fn a_sink_that_is_not_there_at_the_start_is_waited_for() {
    let source = outboxd::source::memory::Memory::new("orders", 16);
    let sink = outboxd::sink::memory::Memory::new();
    sink.go_down();
    source.insert(&[row("k", 1)]).unwrap();
    let (relay, _) = super::bench::start_over(&source, &sink, |_| {}).await;
    eventually(LONG, "the database is owned", || async {
        let state = relay.board().snapshot().databases[0].state;
        (state == outboxd::status::DatabaseState::Active)
            .then_some(())
            .ok_or(format!("{state:?}"))
    })
    .await;
    assert!(sink.received().is_empty());
    sink.come_up();
    sink.wait_for(1, LONG).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_got_lost_is_asked_for_again_and_the_duplicate_counts_as_success() {
    let bench = Bench::with(|options| {
        options.sinks[0].publish_timeout = Duration::from_millis(200);
    })
    .await;
    let mut first = true;
    bench.sink.on(move |delivery| {
        if delivery.event.seq != 1 {
            return None;
        }
        Some(match std::mem::take(&mut first) {
            true => Answer::TakeSilently,
            false => Answer::TakeAs(Receipt {
                duplicate: true,
                ..Receipt::default()
            }),
        })
    });
    bench.insert("k", 1..=2);
    bench.received(3).await;
    bench.emptied().await;
    assert_eq!(numbers(&bench.sink.received(), "k"), [1, 2]);
    let repeat = &bench.sink.received()[1].delivery;
    assert!(repeat.may_be_repeat && repeat.attempt == 1, "{repeat:?}");
}

#[tokio::test]
async fn one_subject_that_nobody_takes_is_charged_only_while_others_succeed() {
    let bench = Bench::start().await;
    bench.sink.on(|delivery| {
        let lonely = delivery.event.ordering_key.as_deref() == Some("lonely");
        lonely.then(|| Answer::Fail(PublishError::unavailable("no stream for this subject")))
    });
    let charged = || async {
        let row = &bench.source.read_seqs("events", &[1]).await.unwrap()[0];
        row.attempts
    };
    bench.insert("lonely", 1..=1);
    // Alone it is tried again and again, and nothing is charged: nobody can tell an outage from its fault.
    bench.handed_over(5).await;
    assert_eq!(charged().await, 0);
    // While others succeed between its failures, it is.
    let mut n = 0;
    eventually(LONG, "a failure is charged", || {
        n += 1;
        bench.insert("good", n..=n);
        async {
            match charged().await {
                0 => Err("not yet".to_owned()),
                _ => Ok(()),
            }
        }
    })
    .await;
    assert!(discarded(&bench).await.is_empty());
}

#[tokio::test]
async fn an_event_over_which_the_sink_panics_is_set_aside_at_the_third_time() {
    let bench = Bench::start().await;
    bench
        .sink
        .on(|delivery| (delivery.event.seq == 2).then_some(Answer::Panic));
    bench.insert("k", 1..=3);
    for key in 0..20 {
        bench.insert(&format!("k{key}"), 1..=5);
    }
    let received = bench.received(102).await;
    assert_eq!(numbers(&received, "k"), [1, 3]);
    bench.emptied().await;
    let list = discarded(&bench).await;
    assert_eq!((&*list[0].reason, list[0].attempts), ("crashed", 0));
    assert!(list[0].last_error.contains("panicked"), "{list:?}");
    assert_eq!(list.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_an_hour_charges_nothing_and_is_over_in_seconds() {
    outage_of(Duration::from_secs(3_600)).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "the same for a day: two minutes of work"]
async fn an_outage_of_a_day_charges_nothing_and_is_over_in_seconds() {
    outage_of(Duration::from_secs(24 * 3_600)).await;
}

/// By a clock that jumps from one moment at which something happens to the next.
async fn outage_of(span: Duration) {
    let bench = Bench::start().await;
    bench.insert("warm", 1..=1);
    bench.received(1).await;
    bench.sink.go_down();
    for key in 0..100 {
        bench.insert(&format!("k{key}"), 1..=3);
    }
    let began = tokio::time::Instant::now();
    // The outage itself.
    tokio::time::sleep(span).await;
    assert!(!bench.relay.board().ready().is_empty());
    bench.sink.come_up();
    let back = tokio::time::Instant::now();
    let received = bench.received(301).await;
    assert!(
        back.elapsed() < Duration::from_secs(3),
        "{:?}",
        back.elapsed()
    );
    assert!(began.elapsed() > span);
    assert!(by_key(&received).values().all(|list| list.is_sorted()));
    assert!(received.iter().all(|item| item.delivery.attempt == 1));
    bench.emptied().await;
    assert!(discarded(&bench).await.is_empty());
}

#[tokio::test]
async fn an_outage_of_the_database_pauses_and_loses_nothing() {
    let bench = Bench::start().await;
    bench.insert("k", 1..=10);
    bench.received(10).await;
    bench.emptied().await;
    bench.faults.outage(SourceErrorKind::Unavailable);
    bench.insert("k", 11..=20);
    let board = bench.relay.board();
    eventually(LONG, "the outage is shown", || async {
        let state = board.snapshot().databases[0].state;
        (state == outboxd::status::DatabaseState::Waiting)
            .then_some(())
            .ok_or(format!("{state:?}"))
    })
    .await;
    bench.faults.heal();
    let received = bench.received(20).await;
    assert_eq!(numbers(&received, "k"), (1..=20).collect::<Vec<_>>());
    bench.emptied().await;
}

#[tokio::test]
async fn a_lost_reply_of_a_settlement_repeats_nothing() {
    let bench = Bench::start().await;
    bench
        .faults
        .fail(Op::Settle, 2, SourceErrorKind::Unavailable, When::After);
    bench.insert("k", 1..=10);
    let received = bench.received(10).await;
    assert_eq!(received.len(), 10);
    bench.emptied().await;
}

#[tokio::test]
async fn an_outcome_that_the_database_refuses_takes_no_other_with_it() {
    let bench = Bench::start().await;
    bench
        .faults
        .fail(Op::Settle, 3, SourceErrorKind::Refused, When::Before);
    bench.insert("k", 1..=20);
    bench
        .sink
        .wait_until(LONG, |list| numbers(list, "k").len() == 20)
        .await
        .unwrap();
    bench.emptied().await;
    assert!(numbers(&bench.sink.received(), "k").is_sorted());
}
