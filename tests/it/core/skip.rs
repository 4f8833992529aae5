//! Heads of keys that an operator skips, or has tried at once, while the relay runs.

use std::time::Duration;

use outboxd::retry::{OnExhausted, Policy};
use outboxd::sink::PublishError;
use outboxd::sink::memory::{Answer, Gate, Memory as MemorySink};
use outboxd::source::admin::{Admin, Discarded};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::source::waiting::Pick;
use outboxd::testing::faults::Op;
use tokio::time::Instant;

use super::bench::{Bench, LONG, keyless, numbers, row, start_over};
use super::operate::{SOON, by, discarded, key, polled, resume, routes, shown};
use crate::support::eventually;

fn pick(seq: i64) -> Pick {
    Pick {
        seq,
        sink: "events".into(),
    }
}

/// Waits until so many events are set aside.
async fn set_aside(bench: &Bench, count: usize) -> Vec<Discarded> {
    eventually(LONG, "events are set aside", || async {
        let list = discarded(bench).await;
        match list.len() == count {
            true => Ok(list),
            false => Err(format!("{list:?}")),
        }
    })
    .await
}

fn policy(max_attempts: u32, base: Duration, on_exhausted: OnExhausted) -> Policy {
    Policy {
        max_attempts,
        base,
        max: base,
        on_exhausted,
    }
}

#[tokio::test]
async fn the_head_of_a_key_that_backs_off_is_skipped_at_once() {
    let hour = Duration::from_secs(3_600);
    let retry = policy(50, hour, OnExhausted::Discard);
    let bench = Bench::with(|options| options.routes = routes(retry)).await;
    bench.sink.on(|delivery| {
        (delivery.event.seq == 1).then(|| Answer::Fail(PublishError::retryable("no")))
    });
    bench.insert("k", 1..=3);
    bench.handed_over(1).await;
    waits(&bench, 1).await;
    let began = Instant::now();
    assert_eq!(bench.source.skip(&[pick(1)], &by()).await.unwrap(), 1);
    let received = bench.received(2).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(numbers(&received, "k"), [2, 3]);
    let list = set_aside(&bench, 1).await;
    assert_eq!((&*list[0].reason, list[0].attempts), ("operator", 1));
    assert_eq!(list[0].last_error, "skipped by tester: a test");
    bench.emptied().await;
}

/// Waits until the relay knows so many keys to be parked.
async fn waits(bench: &Bench, count: u64) {
    let board = bench.relay.board();
    eventually(LONG, "keys are parked", || async {
        let feed = board.snapshot().feeds[0].clone();
        (feed.parked == count && feed.in_flight == 0)
            .then_some(())
            .ok_or(format!("{feed:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_head_that_is_out_is_skipped_after_its_answer_unless_that_is_good() {
    for good in [false, true] {
        let hour = Duration::from_secs(3_600);
        let retry = policy(50, hour, OnExhausted::Discard);
        let bench = Bench::with(|options| options.routes = routes(retry)).await;
        let gate = Gate::closed();
        let held = gate.clone();
        bench.sink.on(move |delivery| {
            let answer = match good {
                true => Answer::Take,
                false => Answer::Fail(PublishError::retryable("no")),
            };
            (delivery.event.seq == 1).then(|| Answer::Hold(held.clone(), Box::new(answer)))
        });
        bench.insert("k", 1..=3);
        bench.handed_over(1).await;
        assert_eq!(bench.source.skip(&[pick(1)], &by()).await.unwrap(), 1);
        polled(&bench).await;
        assert!(discarded(&bench).await.is_empty(), "it is out");
        gate.open();
        let received = bench.received(if good { 3 } else { 2 }).await;
        bench.emptied().await;
        let list = discarded(&bench).await;
        if good {
            assert_eq!(numbers(&received, "k"), [1, 2, 3]);
            assert!(list.is_empty(), "it was published");
        } else {
            assert_eq!(numbers(&received, "k"), [2, 3]);
            assert_eq!(&*list[0].reason, "operator");
            assert_eq!(bench.sink.handed_over().len(), 3, "it was not sent again");
        }
    }
}

#[tokio::test]
async fn skipped_is_also_what_is_delayed_paused_or_without_a_key() {
    let hour = Duration::from_secs(3_600);
    let bench = Bench::start().await;
    bench.source.pause(&key("paused"), &by()).await.unwrap();
    shown(&bench, 1).await;
    let rows = [
        row("delayed", 1).delayed(hour),
        row("delayed", 2),
        row("paused", 1),
        row("paused", 2),
        keyless(1).delayed(hour),
    ];
    let at = bench.source.insert(&rows).unwrap();
    waits(&bench, 3).await;
    let picks = [0, 2, 4].map(|n: usize| pick(at[n].seq));
    assert_eq!(bench.source.skip(&picks, &by()).await.unwrap(), 3);
    set_aside(&bench, 3).await;
    let received = bench.received(1).await;
    assert_eq!(numbers(&received, "delayed"), [2]);
    polled(&bench).await;
    assert_eq!(bench.sink.handed_over().len(), 1, "the pause stands");
    resume(&bench, &key("paused")).await;
    let received = bench.received(2).await;
    assert_eq!(numbers(&received, "paused"), [2]);
    bench.emptied().await;
}

#[tokio::test]
async fn a_skip_waits_for_a_relay_and_needs_no_sink() {
    let source = MemorySource::new("orders", 16);
    let sink = MemorySink::new();
    sink.go_down();
    let at = source.insert(&[row("k", 1), row("k", 2)]).unwrap();
    let picks = [pick(at[0].seq)];
    assert_eq!(source.skip(&picks, &by()).await.unwrap(), 1);
    let (relay, faults) = start_over(&source, &sink, |_| {}).await;
    let bench = Bench {
        source,
        faults,
        sink,
        relay,
    };
    set_aside(&bench, 1).await;
    bench.sink.come_up();
    let received = bench.received(1).await;
    assert_eq!(numbers(&received, "k"), [2]);
    bench.emptied().await;
}

#[tokio::test]
async fn a_blocked_key_stands_until_an_operator_gives_it_a_fresh_budget() {
    let retry = policy(2, Duration::from_millis(20), OnExhausted::Block);
    let bench = Bench::with(|options| options.routes = routes(retry)).await;
    let mut failures = 3;
    bench.sink.on(move |delivery| {
        (delivery.event.seq == 1 && failures > 0).then(|| {
            failures -= 1;
            Answer::Fail(PublishError::retryable("no"))
        })
    });
    bench.insert("k", 1..=2);
    bench.handed_over(2).await;
    waits(&bench, 1).await;
    polled(&bench).await;
    assert_eq!(bench.sink.handed_over().len(), 2, "its budget is spent");
    let began = Instant::now();
    assert_eq!(bench.source.hurry(&[pick(1)], &by()).await.unwrap(), 1);
    // One failure more is within the fresh budget.
    let received = bench.received(2).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(numbers(&received, "k"), [1, 2]);
    assert_eq!(received[0].delivery.attempt, 2);
    bench.emptied().await;
}

#[tokio::test]
async fn a_backed_off_key_is_tried_at_once_when_an_operator_says_so() {
    let hour = Duration::from_secs(3_600);
    let retry = policy(50, hour, OnExhausted::Discard);
    let bench = Bench::with(|options| options.routes = routes(retry)).await;
    let mut failures = 1;
    bench.sink.on(move |delivery| {
        (delivery.event.seq == 1 && failures > 0).then(|| {
            failures -= 1;
            Answer::Fail(PublishError::retryable("no"))
        })
    });
    bench.insert("k", 1..=2);
    bench.handed_over(1).await;
    waits(&bench, 1).await;
    let began = Instant::now();
    assert_eq!(bench.source.hurry(&[pick(1)], &by()).await.unwrap(), 1);
    let received = bench.received(2).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(numbers(&received, "k"), [1, 2]);
    bench.emptied().await;
}

#[tokio::test]
async fn a_command_lets_nothing_pass_what_is_not_read_yet() {
    let bench = Bench::with(|options| options.databases[0].budget_events = 16).await;
    let gate = Gate::closed();
    let held = gate.clone();
    bench.sink.on(move |delivery| {
        let first = delivery.event.ordering_key.as_deref() != Some("k");
        first.then(|| Answer::Hold(held.clone(), Box::new(Answer::Take)))
    });
    for n in 0..16 {
        bench.insert(&format!("k{n}"), 1..=1);
    }
    // As many as are held at once: what comes now is not read.
    bench.handed_over(16).await;
    let at = bench.source.insert(&[row("k", 1), row("k", 2)]).unwrap();
    bench.source.hurry(&[pick(at[1].seq)], &by()).await.unwrap();
    polled(&bench).await;
    gate.open();
    let received = bench.received(18).await;
    assert_eq!(numbers(&received, "k"), [1, 2]);
    assert_eq!(received.len(), 18, "no duplicates");
    bench.emptied().await;
}

#[tokio::test]
async fn a_command_that_an_answer_overtakes_sends_nothing_again() {
    let bench = Bench::start().await;
    let gate = Gate::closed();
    let held = gate.clone();
    let mut first = true;
    bench.sink.on(move |delivery| {
        (delivery.event.seq == 1 && std::mem::take(&mut first)).then(|| {
            let refuse = Answer::Fail(PublishError::rejected("refused", "no"));
            Answer::Hold(held.clone(), Box::new(refuse))
        })
    });
    bench.insert("k", 1..=2);
    bench.handed_over(1).await;
    // The row is read while it is out; that is heard of when it is set aside.
    let late = Duration::from_millis(300);
    bench.faults.answer_late(Op::ReadSeqs, late);
    let before = bench.faults.count(Op::ReadSeqs);
    bench.source.hurry(&[pick(1)], &by()).await.unwrap();
    bench.calls(Op::ReadSeqs, before + 1).await;
    gate.open();
    bench.received(1).await;
    bench.emptied().await;
    bench.calls(Op::ReadSeqs, before + 1).await;
    let began = Instant::now();
    while began.elapsed() < 2 * late {
        // Time itself is what this is about: the late answer comes within it.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(bench.sink.handed_over().len(), 2, "once each");
    }
    assert_eq!(numbers(&bench.sink.received(), "k"), [2]);
    assert_eq!(discarded(&bench).await.len(), 1);
}
