//! A sink that keeps order by itself: runs go out whole, and what fails in them comes back in order.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outboxd::event::{Event, Payload};
use outboxd::relay::Relay;
use outboxd::sink::memory::{Answer, Gate, Memory as MemorySink};
use outboxd::sink::{Lanes, PublishError, Receipt};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::testing::faults::{self, FaultySink, SinkFaults};

use super::bench::{LONG, by_key, numbers, options_over, row};
use crate::support::eventually;

/// One call of a session, with the numbers of its events.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Single(u32),
    Batch(Vec<u32>),
}

fn number(event: &Event) -> u32 {
    let Payload::Json(text) = &event.payload else {
        panic!("not JSON");
    };
    let value: serde_json::Value = serde_json::from_slice(text).unwrap();
    u32::try_from(value["n"].as_u64().unwrap()).unwrap()
}

/// What the sink was called with.
fn calls(faults: &SinkFaults) -> Vec<Call> {
    let number = |event: &Arc<Event>| number(event);
    let calls = faults.calls();
    let numbered = calls.iter().map(|call| match call {
        faults::Call::Single(event) => Call::Single(number(event)),
        faults::Call::Batch(events) => Call::Batch(events.iter().map(number).collect()),
    });
    numbered.collect()
}

const LANE: Lanes = Lanes {
    count: 1,
    events: 100,
    bytes: 1 << 20,
};

struct Bench {
    source: MemorySource,
    sink: MemorySink,
    faults: SinkFaults,
    relay: Relay,
}

impl Bench {
    async fn start(lanes: Option<Lanes>) -> Self {
        let source = MemorySource::new("orders", 16);
        let sink = MemorySink::new();
        sink.keep_order(lanes);
        let faults = SinkFaults::default();
        let mut options = options_over(&source, &sink);
        options.sinks[0].sink = Arc::new(FaultySink::new(Arc::new(sink.clone()), faults.clone()));
        options.sinks[0].publish_timeout = Duration::from_millis(300);
        Self {
            source,
            sink,
            faults,
            relay: outboxd::relay::start(options).await.unwrap(),
        }
    }

    /// One transaction.
    fn insert(&self, key: &str, numbers: std::ops::RangeInclusive<u32>) {
        let rows: Vec<_> = numbers.map(|n| row(key, n)).collect();
        self.source.insert(&rows).unwrap();
    }

    /// Keeps a lane busy with event 0 of another key; gives what lets it go.
    async fn busy(&self) -> Gate {
        let gate = Gate::closed();
        let held = gate.clone();
        self.sink.on(move |delivery| {
            let first = number(&delivery.event) == 0;
            first.then(|| Answer::Hold(held.clone(), Box::new(Answer::Take)))
        });
        self.insert("busy", 0..=0);
        self.called(|calls| !calls.is_empty()).await;
        gate
    }

    async fn called(&self, enough: impl Fn(&[Call]) -> bool) {
        eventually(LONG, "the sink is called", || async {
            let calls = calls(&self.faults);
            enough(&calls).then_some(()).ok_or(format!("{calls:?}"))
        })
        .await;
    }

    /// Waits until so many events are out.
    async fn out(&self, count: u64) {
        eventually(LONG, "events are out", || async {
            let feeds = self.relay.board().snapshot().feeds;
            let out: u64 = feeds.iter().map(|feed| feed.in_flight).sum();
            (out >= count).then_some(()).ok_or(format!("{out}"))
        })
        .await;
    }

    /// Waits until all is delivered; the calls, without those of the key that kept the lane busy.
    async fn calls(&self) -> Vec<Call> {
        eventually(LONG, "the outbox is empty", || async {
            let pending = self.source.pending();
            (pending == 0).then_some(()).ok_or(format!("{pending}"))
        })
        .await;
        let calls = calls(&self.faults);
        calls
            .into_iter()
            .filter(|call| !matches!(call, Call::Single(0)) && *call != Call::Batch(vec![0]))
            .collect()
    }
}

/// With batches as one that follow each other: what comes to an idle lane first goes at once.
fn joined(calls: Vec<Call>) -> Vec<Call> {
    let mut joined: Vec<Call> = Vec::new();
    for call in calls {
        match (joined.last_mut(), call) {
            (Some(Call::Batch(before)), Call::Batch(numbers))
                if before[before.len() - 1] + 1 == numbers[0] =>
            {
                before.extend(numbers);
            }
            (_, call) => joined.push(call),
        }
    }
    joined
}

fn batch(numbers: std::ops::RangeInclusive<u32>) -> Call {
    Call::Batch(numbers.collect())
}

#[tokio::test]
async fn the_whole_run_of_a_key_is_out_at_once() {
    let bench = Bench::start(Some(LANE)).await;
    let gate = bench.busy().await;
    bench.insert("k", 1..=80);
    bench.out(81).await;
    gate.open();
    assert_eq!(bench.calls().await, [batch(1..=80)]);
}

#[tokio::test]
async fn a_run_is_cut_where_a_batch_is_full() {
    let bench = Bench::start(Some(LANE)).await;
    let gate = bench.busy().await;
    bench.insert("k", 1..=250);
    bench.out(251).await;
    gate.open();
    let expected = [batch(1..=100), batch(101..=200), batch(201..=250)];
    assert_eq!(bench.calls().await, expected);
}

#[tokio::test]
async fn one_event_of_a_key_is_out_where_nothing_keeps_order() {
    let bench = Bench::start(None).await;
    bench.insert("k", 1..=20);
    let expected: Vec<_> = (1..=20).map(Call::Single).collect();
    assert_eq!(bench.calls().await, expected);
}

#[tokio::test]
async fn an_event_whose_answer_was_lost_goes_alone_and_then_the_rest_together() {
    let bench = Bench::start(Some(LANE)).await;
    let mut silent = true;
    bench.sink.on(move |delivery| {
        let now = number(&delivery.event) == 10 && std::mem::take(&mut silent);
        now.then_some(Answer::TakeSilently)
    });
    let gate = bench.busy().await;
    bench.insert("k", 1..=50);
    bench.out(51).await;
    gate.open();
    let expected = [batch(1..=50), Call::Single(10), batch(11..=50)];
    assert_eq!(joined(bench.calls().await), expected);
    let received = bench.sink.received();
    assert_eq!(received.len(), 52, "the one in doubt twice");
    assert_eq!(numbers(&received, "k"), (1..=50).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_a_lost_session_leaves_in_doubt_goes_alone_until_one_of_it_is_new() {
    let bench = Bench::start(Some(LANE)).await;
    let (hang, gate) = (Gate::closed(), bench.busy().await);
    let held = hang.clone();
    bench.sink.on(move |delivery| {
        let held = held.clone();
        (number(&delivery.event) == 4).then(|| Answer::Hold(held, Box::new(Answer::Take)))
    });
    bench.insert("k", 1..=50);
    bench.out(51).await;
    gate.open();
    // The first three are taken, and nothing of the batch is answered.
    bench.sink.wait_for(4, LONG).await.unwrap();
    bench.sink.lose_sessions();
    eventually(LONG, "there is another session", || async {
        let opened = bench.sink.sessions_opened();
        (opened == 2).then_some(()).ok_or(opened.to_string())
    })
    .await;
    hang.open();
    let calls = joined(bench.calls().await);
    let received = bench.sink.received();
    assert_eq!(numbers(&received, "k"), (1..=50).collect::<Vec<_>>());
    assert_eq!(calls[0], batch(1..=50));
    // Whether the answers for the first three came through is a matter of chance; the fourth is in doubt.
    let singly: Vec<u32> = calls[1..]
        .iter()
        .map_while(|call| match call {
            Call::Single(n) => Some(*n),
            Call::Batch(_) => None,
        })
        .collect();
    assert!(singly == [4] || singly == [1, 2, 3, 4], "{calls:?}");
    assert_eq!(calls[1 + singly.len()..], [batch(5..=50)]);
    assert_eq!(received.len(), 51 + singly.len() - 1);
}

#[tokio::test]
async fn the_first_failure_decides_and_the_rest_comes_back_in_order() {
    let bench = Bench::start(Some(LANE)).await;
    let mut failures = 2;
    bench.sink.on(move |delivery| {
        let fails = number(&delivery.event) == 10 && failures > 0;
        failures -= u32::from(fails);
        fails.then(|| Answer::Fail(PublishError::retryable("not yet")))
    });
    let gate = bench.busy().await;
    bench.insert("k", 1..=50);
    bench.out(51).await;
    gate.open();
    let single = || Call::Single(10);
    let expected = [batch(1..=50), single(), single(), batch(11..=50)];
    assert_eq!(joined(bench.calls().await), expected);
    let received = bench.sink.received();
    assert_eq!(received.len(), 51, "nothing twice");
    assert_eq!(numbers(&received, "k"), (1..=50).collect::<Vec<_>>());
    for item in received {
        let attempt = if number(&item.delivery.event) == 10 {
            3
        } else {
            1
        };
        assert_eq!(item.delivery.attempt, attempt);
    }
}

#[tokio::test]
async fn what_is_queued_behind_a_failure_comes_back_unsent() {
    for answer in [
        (|| Answer::Fail(PublishError::retryable("not yet"))) as fn() -> Answer,
        || Answer::Fail(PublishError::rejected("refused", "no")),
        || Answer::TakeSilently,
        || Answer::Hang,
    ] {
        let bench = Bench::start(Some(LANE)).await;
        let mut fails = true;
        bench.sink.on(move |delivery| {
            let now = number(&delivery.event) == 10 && std::mem::take(&mut fails);
            now.then(answer)
        });
        let gate = bench.busy().await;
        bench.insert("k", 1..=250);
        bench.out(251).await;
        gate.open();
        let calls = joined(bench.calls().await);
        let behind = batch(11..=250);
        assert!(calls.ends_with(&[behind]), "{calls:?}");
        let mut expected: Vec<u32> = (1..=250).collect();
        if matches!(answer(), Answer::Fail(error) if error.message == "no") {
            expected.remove(9);
        }
        assert_eq!(numbers(&bench.sink.received(), "k"), expected);
    }
}

#[tokio::test]
async fn a_rejected_event_is_set_aside_and_what_was_behind_it_goes_on() {
    let bench = Bench::start(Some(LANE)).await;
    bench.sink.on(|delivery| {
        let bad = [1, 10, 50].contains(&number(&delivery.event));
        bad.then(|| Answer::Fail(PublishError::rejected("too_large", "no")))
    });
    let gate = bench.busy().await;
    bench.insert("k", 1..=50);
    bench.out(51).await;
    gate.open();
    let expected = [batch(1..=50), batch(2..=50), batch(11..=50)];
    assert_eq!(joined(bench.calls().await), expected);
    let received = bench.sink.received();
    let mut expected: Vec<u32> = (2..50).collect();
    expected.retain(|n| *n != 10);
    assert_eq!(numbers(&received, "k"), expected);
    assert_eq!(received.len(), 48);
}

#[tokio::test]
async fn a_failure_of_one_key_costs_the_others_of_its_batch_nothing() {
    let bench = Bench::start(Some(LANE)).await;
    bench.sink.on(|delivery| {
        let poison = delivery.event.ordering_key.as_deref() == Some("poison");
        poison.then(|| Answer::Fail(PublishError::rejected("refused", "no")))
    });
    let gate = bench.busy().await;
    let mut rows = Vec::new();
    for n in 1..=10 {
        rows.extend([row("a", n), row("poison", n), row("b", n)]);
    }
    bench.source.insert(&rows).unwrap();
    bench.out(31).await;
    gate.open();
    bench.calls().await;
    let received = bench.sink.received();
    let keys = by_key(&received);
    for key in ["a", "b"] {
        assert_eq!(keys[key], (1..=10).collect::<Vec<_>>());
    }
    assert_eq!(received.len(), 21);
    assert!(received.iter().all(|item| item.delivery.attempt == 1));
}

#[tokio::test]
async fn a_sink_that_keeps_order_from_one_session_to_the_next_or_not_gets_it_in_order() {
    let bench = Bench::start(Some(LANE)).await;
    for round in 0..6 {
        for key in ["a", "b", "c"] {
            bench.insert(key, round * 50 + 1..=round * 50 + 50);
        }
        let before = bench.sink.received().len();
        bench.sink.wait_for(before + 20, LONG).await.unwrap();
        bench.sink.keep_order((round % 2 == 1).then_some(LANE));
        bench.sink.lose_sessions();
    }
    let calls = bench.calls().await;
    let keys = by_key(&bench.sink.received());
    for key in ["a", "b", "c"] {
        assert_eq!(keys[key], (1..=300).collect::<Vec<_>>());
    }
    let batches = calls.iter().filter(|call| matches!(call, Call::Batch(_)));
    assert!(batches.count() > 0 && calls.iter().any(|call| matches!(call, Call::Single(_))));
    let ids: HashSet<_> = bench
        .sink
        .received()
        .iter()
        .map(|r| r.delivery.event.id)
        .collect();
    assert_eq!(ids.len(), 900);
}

#[tokio::test]
async fn an_event_that_the_sink_knew_is_settled_in_its_place_among_the_others() {
    let bench = Bench::start(Some(LANE)).await;
    let known = Receipt {
        duplicate: true,
        ..Receipt::default()
    };
    bench
        .sink
        .on(move |delivery| (delivery.event.seq % 5 == 2).then(|| Answer::TakeAs(known.clone())));
    // Successes in a lane are counted, not told one by one: none may be counted for another.
    bench.insert("k", 1..=60);
    eventually(LONG, "the outbox is empty", || async {
        let pending = bench.source.pending();
        (pending == 0).then_some(()).ok_or(pending.to_string())
    })
    .await;
    assert_eq!(
        numbers(&bench.sink.received(), "k"),
        (1..=60).collect::<Vec<_>>()
    );
}
