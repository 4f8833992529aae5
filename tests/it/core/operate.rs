//! Pauses while the relay runs.

use std::sync::Arc;
use std::time::Duration;

use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::PublishError;
use outboxd::sink::memory::{Answer, Gate, Memory as MemorySink};
use outboxd::source::Target;
use outboxd::source::admin::{Admin, Discarded, DiscardedFilter, Operator};
use outboxd::testing::faults::Op;
use outboxd::testing::source::NewRow;
use tokio::time::Instant;

use super::bench::{Bench, LONG, by_key, keyless, numbers, row, start_over};
use crate::support::eventually;

/// A command takes effect within this.
pub(super) const SOON: Duration = Duration::from_secs(1);

pub(super) fn by() -> Operator {
    Operator {
        name: "tester".into(),
        reason: Some("a test".into()),
    }
}

fn sink(name: &str) -> Target {
    Target::Sink { name: name.into() }
}

fn route(name: &str) -> Target {
    Target::Route { name: name.into() }
}

pub(super) fn key(name: &str) -> Target {
    Target::Key {
        name: name.into(),
        sink: None,
    }
}

/// Pauses, and waits until the relay has taken it in.
pub(super) async fn pause(bench: &Bench, target: &Target) {
    let began = Instant::now();
    assert!(bench.source.pause(target, &by()).await.unwrap());
    shown(bench, 1).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

pub(super) async fn resume(bench: &Bench, target: &Target) {
    assert!(bench.source.resume(target, &by()).await.unwrap());
    shown(bench, 0).await;
}

/// Waits until the board shows so many pauses.
pub(super) async fn shown(bench: &Bench, count: usize) {
    let board = bench.relay.board();
    eventually(LONG, "the pause shows", || async {
        let paused = board.paused();
        (paused.len() == count)
            .then_some(())
            .ok_or(format!("{paused:?}"))
    })
    .await;
}

/// Lets the relay poll a few times more: what it would do wrongly, it has done by then.
pub(super) async fn polled(bench: &Bench) {
    let before = bench.faults.count(Op::Commands);
    for n in 1..=3 {
        bench.source.publish(&[]).await.unwrap();
        bench.calls(Op::Commands, before + n).await;
    }
}

pub(super) async fn discarded(bench: &Bench) -> Vec<Discarded> {
    let all = DiscardedFilter::default();
    bench.source.discarded(&all, 100).await.unwrap()
}

pub(super) fn routes(retry: Policy) -> Routes {
    let route = |name: &str, kinds: &[&str]| Route {
        name: name.into(),
        kinds: kinds.iter().map(|kind| (*kind).into()).collect(),
        sinks: Arc::from([Arc::from("events")]),
        retry: retry.clone(),
    };
    Routes::new(vec![route("all", &["*"]), route("mails", &["mail.*"])])
}

fn mail(key: &str, n: u32) -> NewRow {
    NewRow::json("mail.sent", &format!("{{\"n\":{n}}}")).key(key)
}

#[tokio::test]
async fn a_paused_source_sends_nothing_and_goes_on_in_order() {
    let bench = Bench::start().await;
    bench.insert("k", 1..=1);
    bench.received(1).await;
    pause(&bench, &Target::Source).await;
    bench.insert("k", 2..=3);
    bench.insert("l", 1..=2);
    bench.source.insert(&[keyless(1)]).unwrap();
    let reads = bench.faults.count(Op::Read);
    polled(&bench).await;
    assert_eq!(bench.sink.handed_over().len(), 1);
    assert_eq!(bench.faults.count(Op::Read), reads, "it is not even read");
    let words = bench.relay.board().paused()[0].words.clone();
    assert!(
        words.starts_with("the source is paused by tester since ") && words.ends_with(": a test"),
        "{words}"
    );
    resume(&bench, &Target::Source).await;
    let received = bench.received(6).await;
    let keys = by_key(&received);
    assert_eq!((&*keys["k"], &*keys["l"]), (&[1, 2, 3][..], &[1, 2][..]));
    assert_eq!(received.len(), 6, "no duplicates");
    bench.emptied().await;
}

#[tokio::test]
async fn what_is_out_when_a_pause_comes_finishes_and_the_rest_goes_back() {
    for target in [Target::Source, sink("events"), route("all"), key("k")] {
        let bench = Bench::start().await;
        let gate = Gate::closed();
        let held = gate.clone();
        bench.sink.on(move |delivery| {
            (delivery.event.seq == 1).then(|| Answer::Hold(held.clone(), Box::new(Answer::Take)))
        });
        bench.insert("k", 1..=5);
        bench.handed_over(1).await;
        pause(&bench, &target).await;
        gate.open();
        bench.received(1).await;
        polled(&bench).await;
        assert_eq!(bench.sink.handed_over().len(), 1, "{target}");
        let pending = bench.source.pending();
        assert_eq!(pending, 4, "{target}: the first is settled");
        resume(&bench, &target).await;
        let received = bench.received(5).await;
        assert_eq!(numbers(&received, "k"), [1, 2, 3, 4, 5], "{target}");
        assert_eq!(received.len(), 5, "{target}: no duplicates");
        bench.emptied().await;
    }
}

#[tokio::test]
async fn a_resume_while_the_head_is_still_out_keeps_the_order() {
    let bench = Bench::start().await;
    let gate = Gate::closed();
    let held = gate.clone();
    let mut first = true;
    bench.sink.on(move |delivery| {
        (delivery.event.seq == 1 && std::mem::take(&mut first)).then(|| {
            let fail = Answer::Fail(PublishError::retryable("not yet"));
            Answer::Hold(held.clone(), Box::new(fail))
        })
    });
    bench.insert("k", 1..=5);
    bench.handed_over(1).await;
    for target in [sink("events"), route("all"), key("k")] {
        pause(&bench, &target).await;
        resume(&bench, &target).await;
    }
    bench.insert("k", 6..=8);
    polled(&bench).await;
    assert_eq!(bench.sink.handed_over().len(), 1);
    gate.open();
    let received = bench.received(8).await;
    assert_eq!(numbers(&received, "k"), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(received.len(), 8, "no duplicates");
    bench.emptied().await;
}

#[tokio::test]
async fn what_a_lost_connection_may_have_stored_is_known_as_a_repeat_after_a_pause() {
    let bench = Bench::start().await;
    // What is there when an owner begins counts as a possible repeat by itself.
    bench.insert("first", 1..=1);
    bench.received(1).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let mut left = 2;
    bench.sink.on(move |_| {
        (left > 0).then(|| {
            left -= 1;
            Answer::Hold(held.clone(), Box::new(Answer::LoseSession))
        })
    });
    bench.source.insert(&[row("k", 1), keyless(1)]).unwrap();
    bench.handed_over(3).await;
    pause(&bench, &sink("events")).await;
    gate.open();
    let board = bench.relay.board();
    eventually(LONG, "they have come back", || async {
        let waiting = board.snapshot().feeds[0].in_flight;
        (waiting == 0).then_some(()).ok_or(waiting.to_string())
    })
    .await;
    polled(&bench).await;
    assert_eq!(bench.sink.handed_over().len(), 3, "neither was sent again");
    resume(&bench, &sink("events")).await;
    let received = bench.received(3).await.split_off(1);
    assert!(received.iter().all(|item| item.delivery.may_be_repeat));
    assert!(received.iter().all(|item| item.delivery.attempt == 1));
    bench.emptied().await;
}

#[tokio::test]
async fn a_sink_that_is_down_is_paused_too_and_nothing_is_charged() {
    let bench = Bench::start().await;
    bench.sink.go_down();
    bench.insert("k", 1..=3);
    bench.source.insert(&[keyless(1), keyless(2)]).unwrap();
    let board = bench.relay.board();
    eventually(LONG, "events wait at the gate", || async {
        let waiting = board.snapshot().feeds[0].in_flight;
        (waiting == 5).then_some(()).ok_or(waiting.to_string())
    })
    .await;
    pause(&bench, &sink("events")).await;
    eventually(LONG, "they have come back", || async {
        let waiting = board.snapshot().feeds[0].in_flight;
        (waiting == 0).then_some(()).ok_or(waiting.to_string())
    })
    .await;
    bench.sink.come_up();
    eventually(LONG, "the gate is open", || async {
        let gate = board.snapshot().sinks[0].gate;
        (gate == outboxd::status::Gate::Open)
            .then_some(())
            .ok_or(format!("{gate:?}"))
    })
    .await;
    polled(&bench).await;
    assert!(bench.sink.handed_over().is_empty());
    resume(&bench, &sink("events")).await;
    let received = bench.received(5).await;
    assert!(received.iter().all(|item| item.delivery.attempt == 1));
    assert_eq!(numbers(&received, "k"), [1, 2, 3]);
    assert!(discarded(&bench).await.is_empty());
    bench.emptied().await;
}

#[tokio::test]
async fn a_paused_sink_stops_no_other() {
    let hooks = MemorySink::new();
    let other = hooks.clone();
    let bench = Bench::with(|options| {
        let sink = outboxd::relay::SinkOptions::new("hooks", Arc::new(other));
        options.sinks.push(sink);
        options.routes = Routes::new(vec![Route {
            name: "all".into(),
            kinds: vec!["*".into()],
            sinks: Arc::from([Arc::from("events"), Arc::from("hooks")]),
            retry: Policy::default(),
        }]);
    })
    .await;
    pause(&bench, &sink("events")).await;
    bench.insert("k", 1..=20);
    let received = hooks.wait_for(20, LONG).await.unwrap();
    assert_eq!(numbers(&received, "k").len(), 20);
    assert!(bench.sink.handed_over().is_empty());
    resume(&bench, &sink("events")).await;
    let received = bench.received(20).await;
    assert!(numbers(&received, "k").is_sorted());
    bench.emptied().await;
}

#[tokio::test]
async fn a_paused_route_holds_its_keys_at_their_heads_and_no_others() {
    let bench = Bench::with(|options| options.routes = routes(Policy::default())).await;
    pause(&bench, &route("mails")).await;
    // k meets the pause at its second event, m at once, l never; and two without a key.
    bench
        .source
        .insert(&[
            row("k", 1),
            mail("k", 2),
            row("k", 3),
            mail("m", 1),
            row("m", 2),
        ])
        .unwrap();
    bench.insert("l", 1..=3);
    let alone = NewRow::json("mail.sent", "{\"n\":1}");
    bench.source.insert(&[alone, keyless(2)]).unwrap();
    let received = bench.received(5).await;
    polled(&bench).await;
    assert_eq!(bench.sink.handed_over().len(), 5);
    let keys = by_key(&received);
    assert_eq!((&*keys["k"], &*keys["l"]), (&[1][..], &[1, 2, 3][..]));
    assert_eq!(keys[""], [2]);
    assert!(!keys.contains_key("m"));
    bench.insert("m", 3..=3);
    resume(&bench, &route("mails")).await;
    let received = bench.received(11).await;
    let keys = by_key(&received);
    assert_eq!((&*keys["k"], &*keys["m"]), (&[1, 2, 3][..], &[1, 2, 3][..]));
    assert_eq!(received.len(), 11, "no duplicates");
    bench.emptied().await;
}

#[tokio::test]
async fn more_keys_than_memory_keeps_are_held_back_and_found_again() {
    let bench = Bench::with(|options| {
        options.routes = routes(Policy::default());
        options.databases[0].max_parked = 20;
    })
    .await;
    pause(&bench, &route("mails")).await;
    let rows: Vec<NewRow> = (0..300)
        .flat_map(|n| [mail(&format!("k{n}"), 1), row(&format!("k{n}"), 2)])
        .collect();
    bench.source.insert(&rows).unwrap();
    let alone: Vec<NewRow> = (0..300)
        .map(|_| NewRow::json("mail.sent", "{\"n\":1}"))
        .collect();
    bench.source.insert(&alone).unwrap();
    // New events of keys that memory has dropped do not pass their heads.
    for n in 0..300 {
        bench.insert(&format!("k{n}"), 3..=3);
    }
    bench.insert("other", 1..=1);
    bench.received(1).await;
    polled(&bench).await;
    assert_eq!(bench.sink.handed_over().len(), 1);
    resume(&bench, &route("mails")).await;
    let received = bench.received(1_201).await;
    let mut keys = by_key(&received);
    assert_eq!(keys.remove("").map(|list| list.len()), Some(300));
    assert_eq!(keys.remove("other").map(|list| list.len()), Some(1));
    assert!(keys.values().all(|list| *list == [1, 2, 3]), "{keys:?}");
    assert_eq!(received.len(), 1_201, "no duplicates");
    bench.emptied().await;
}

#[tokio::test]
async fn a_paused_key_waits_at_its_head_and_no_other_does() {
    let bench = Bench::start().await;
    pause(&bench, &key("k")).await;
    bench.insert("k", 1..=3);
    bench.insert("l", 1..=3);
    bench.received(3).await;
    polled(&bench).await;
    assert_eq!(bench.sink.handed_over().len(), 3);
    resume(&bench, &key("k")).await;
    let received = bench.received(6).await;
    assert_eq!(numbers(&received, "k"), [1, 2, 3]);
    bench.emptied().await;
}

#[tokio::test]
async fn a_pause_survives_a_restart_and_a_takeover() {
    let bench = Bench::start().await;
    pause(&bench, &key("k")).await;
    bench.insert("k", 1..=2);
    let Bench {
        source,
        sink,
        relay,
        ..
    } = bench;
    relay.shutdown().await.unwrap();
    let (relay, faults) = start_over(&source, &sink, |_| {}).await;
    let (second, _) = start_over(&source, &sink, |_| {}).await;
    let bench = Bench {
        source,
        faults,
        sink,
        relay,
    };
    bench.insert("l", 1..=1);
    bench.received(1).await;
    shown(&bench, 1).await;
    let Bench {
        source,
        sink,
        relay,
        ..
    } = bench;
    relay.shutdown().await.unwrap();
    source.insert(&[row("l", 2)]).unwrap();
    sink.wait_for(2, LONG).await.unwrap();
    assert_eq!(second.board().paused().len(), 1, "the next owner shows it");
    assert!(numbers(&sink.received(), "k").is_empty());
    source.resume(&key("k"), &by()).await.unwrap();
    let received = sink.wait_for(4, LONG).await.unwrap();
    assert_eq!(numbers(&received, "k"), [1, 2]);
}

#[tokio::test]
async fn a_paused_relay_counts_as_caught_up() {
    let bench = Bench::start().await;
    pause(&bench, &sink("events")).await;
    bench.insert("k", 1..=1);
    tokio::time::timeout(LONG, bench.relay.drained())
        .await
        .unwrap();
    resume(&bench, &sink("events")).await;
    bench.received(1).await;
}
