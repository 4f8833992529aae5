//! Interleavings that once went wrong, each by itself.

use std::time::Duration;

use outboxd::actor::restart::Role;
use outboxd::metrics::Metrics;
use outboxd::relay::GapGuard;
use outboxd::sink::memory::{Answer, Gate, Memory as MemorySink};
use outboxd::sink::{Lanes, PublishError};
use outboxd::source::SourceErrorKind;
use outboxd::source::admin::{Admin, DiscardedFilter, Operator};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::status::DatabaseState;
use outboxd::testing::faults::{Op, When};
use tokio::time::Instant;

use super::bench::{Bench, LONG, number, numbers, row, start_over};
use crate::support::eventually;

#[tokio::test]
async fn writers_that_take_turns_are_in_order_even_when_the_first_of_them_stood_in_a_gap() {
    let bench = Bench::start().await;
    let mut late = bench.source.begin();
    late.insert(&row("k", 1)).unwrap();
    bench.insert("other", 1..=1);
    bench.received(1).await;
    // The look into the gap takes its time; the forward read does not.
    bench.faults.delay(Op::Probe, Duration::from_millis(200));
    late.commit();
    bench.insert("k", 2..=2);
    let received = bench.received(3).await;
    assert_eq!(numbers(&received, "k"), [1, 2]);
    bench.emptied().await;
}

#[tokio::test]
async fn hold_also_holds_a_key_that_is_read_by_its_own_run() {
    let bench = Bench::with(|options| options.databases[0].gap_guard = GapGuard::Hold).await;
    bench.insert("first", 1..=1);
    bench.received(1).await;
    let mut failures = 3;
    bench.sink.on(move |delivery| {
        (delivery.event.seq == 2 && failures > 0).then(|| {
            failures -= 1;
            Answer::Fail(PublishError::retryable("not yet"))
        })
    });
    bench.insert("k", 1..=1);
    let mut late = bench.source.begin();
    late.insert(&row("k", 2)).unwrap();
    bench.insert("k", 3..=3);
    bench.received(2).await;
    let before = bench.faults.count(Op::Writers);
    bench.calls(Op::Writers, before + 3).await;
    assert_eq!(bench.sink.received().len(), 2);
    late.commit();
    let received = bench.received(4).await;
    assert_eq!(numbers(&received, "k"), [1, 2, 3]);
    bench.emptied().await;
}

#[tokio::test]
async fn a_discard_that_the_database_refuses_is_tried_again_and_its_key_goes_on() {
    let bench = Bench::start().await;
    let refuse = SourceErrorKind::Refused;
    bench.faults.fail(Op::Settle, 1, refuse, When::Before);
    bench.sink.on(|delivery| {
        (delivery.event.seq == 1).then(|| Answer::Fail(PublishError::rejected("refused", "no")))
    });
    bench.insert("k", 1..=3);
    let received = bench.received(2).await;
    assert_eq!(numbers(&received, "k"), [2, 3]);
    bench.emptied().await;
    let all = DiscardedFilter::default();
    assert_eq!(bench.source.discarded(&all, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn claimer_and_settler_that_die_together_leave_one_claimer() {
    let bench = Bench::start().await;
    bench.insert("k", 1..=1);
    bench.received(1).await;
    for role in [Role::Claimer, Role::Settler] {
        let members = bench.relay.members();
        let victim = members.iter().find(|member| member.role == role).unwrap();
        victim.cell.kill();
    }
    bench.insert("k", 2..=2);
    bench.received(2).await;
    // Two claimers would take the shards from each other for ever: both pauses are over in this time.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(600) {
        let members = bench.relay.members();
        let claimers = members.iter().filter(|m| m.role == Role::Claimer);
        assert!(claimers.count() <= 1);
        // Time itself is what this is about.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_renewal_that_answers_after_the_deadline_loses_nothing() {
    let bench = Bench::with(|options| {
        options.lease_ttl = Duration::from_millis(2_400);
        options.sinks[0].publish_timeout = Duration::from_millis(300);
    })
    .await;
    bench.insert("k", 1..=1);
    bench.received(1).await;
    // Sent at 0.8 s, answered at 2.2 s; the first trust ends at 1.8 s.
    bench
        .faults
        .answer_late(Op::Renew, Duration::from_millis(1_400));
    let began = Instant::now();
    let mut n = 1;
    while began.elapsed() < Duration::from_secs(4) {
        n += 1;
        bench.insert("k", n..=n);
        bench.source.insert(&[super::bench::keyless(n)]).unwrap();
        // Time itself is what this is about.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all = 2 * n as usize - 1;
    bench.received(all).await;
    assert_eq!(
        numbers(&bench.sink.received(), "k"),
        (1..=n).collect::<Vec<_>>()
    );
    bench.emptied().await;
}

#[tokio::test]
async fn a_mark_that_cannot_be_set_is_not_tried_all_the_time() {
    let bench = Bench::start().await;
    let refuse = SourceErrorKind::Refused;
    bench
        .faults
        .fail(Op::SetWakeMark, u32::MAX, refuse, When::Before);
    bench.insert("k", 1..=1);
    bench.received(1).await;
    bench.calls(Op::SetWakeMark, 3).await;
    let (before, began) = (bench.faults.count(Op::SetWakeMark), Instant::now());
    while began.elapsed() < Duration::from_millis(500) {
        bench.insert("k", 2..=2);
        // Time itself is what this is about.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let calls = bench.faults.count(Op::SetWakeMark) - before;
    assert!(calls <= 3, "{calls} calls in half a second");
}

#[tokio::test]
async fn a_read_that_failed_is_repeated_soon_however_long_the_pause_between_polls() {
    let bench = Bench::with(|options| {
        options.databases[0].poll_max = Duration::from_secs(60);
        options.databases[0].fallback = Duration::from_secs(60);
        options.lease_ttl = Duration::from_secs(120);
    })
    .await;
    bench.insert("k", 1..=1);
    bench.received(1).await;
    bench.emptied().await;
    // Idle: no sequencer, no poll for a minute.
    eventually(LONG, "no sequencer lives", || async {
        let members = bench.relay.members();
        let alive = members.iter().any(|m| m.role == Role::Sequencer);
        (!alive).then_some(()).ok_or("one does".to_owned())
    })
    .await;
    let broken = SourceErrorKind::Unavailable;
    bench.faults.fail(Op::ReadKeys, 1, broken, When::Before);
    let began = Instant::now();
    let later = row("k", 2).delayed(Duration::from_millis(500));
    bench.source.insert(&[later]).unwrap();
    bench.received(2).await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn nobody_of_the_tree_is_left_when_a_shutdown_returns() {
    let bench = Bench::start().await;
    for key in 0..50 {
        bench.insert(&format!("k{key}"), 1..=3);
    }
    bench.received(10).await;
    let tree = bench.relay.tree();
    bench.relay.shutdown().await.unwrap();
    // An actor is out of the tree when its state is dropped, a moment after it is known to have ended.
    eventually(Duration::from_millis(200), "the tree is empty", || async {
        let left = tree.members();
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_key_whose_sequencer_dies_while_settling_is_slow_goes_on_once() {
    let bench = Bench::start().await;
    bench.sink.go_down();
    let sequencer = || async {
        let members = bench.relay.members();
        let mut found = members.into_iter().filter(|m| m.role == Role::Sequencer);
        found.next().ok_or("none lives".to_owned())
    };
    bench.source.insert(&[super::bench::keyless(1)]).unwrap();
    let first = eventually(LONG, "a sequencer lives", sequencer).await;
    // The settler has something to do for longer than it takes to read what comes now.
    bench.faults.delay(Op::Settle, Duration::from_millis(100));
    first.cell.kill();
    for n in 2..=20 {
        bench.source.insert(&[super::bench::keyless(n)]).unwrap();
        tokio::task::yield_now().await;
    }
    // Time itself is what this is about.
    tokio::time::sleep(Duration::from_millis(700)).await;
    bench.sink.come_up();
    let received = bench.received(20).await;
    let mut seen: Vec<u32> = received.iter().map(number).collect();
    seen.sort_unstable();
    assert_eq!(seen, (1..=20).collect::<Vec<_>>());
    bench.emptied().await;
}

#[tokio::test]
async fn the_settler_goes_on_when_an_outage_ends_with_a_refusal() {
    let bench = Bench::start().await;
    let (broken, refused) = (SourceErrorKind::Unavailable, SourceErrorKind::Refused);
    bench.faults.fail(Op::Settle, 1, broken, When::Before);
    bench.insert("k", 1..=1);
    bench.calls(Op::Settle, 1).await;
    bench.faults.fail(Op::Settle, 1, refused, When::Before);
    bench.calls(Op::Settle, 2).await;
    bench.insert("other", 1..=3);
    bench.received(4).await;
    bench.emptied().await;
}

#[tokio::test]
async fn an_event_put_back_before_its_discard_is_known_here_is_delivered() {
    let bench = Bench::start().await;
    let mut first = true;
    bench.sink.on(move |_| {
        let rejected = || Answer::Fail(PublishError::rejected("refused", "no"));
        std::mem::take(&mut first).then(rejected)
    });
    // The discard is there to be seen well before the relay hears of it.
    let late = Duration::from_millis(500);
    bench.faults.answer_late(Op::Settle, late);
    bench.insert("k", 1..=1);
    let all = DiscardedFilter::default();
    eventually(LONG, "the event is set aside", || async {
        let count = bench.source.discarded(&all, 10).await.unwrap().len();
        (count == 1).then_some(()).ok_or("it is not".to_owned())
    })
    .await;
    let by = Operator {
        name: "tester".into(),
        reason: None,
    };
    let before = bench.faults.count(Op::Commands);
    assert_eq!(bench.source.requeue(&all, &by).await.unwrap(), 1);
    bench.calls(Op::Commands, before + 1).await;
    bench.received(1).await;
    bench.emptied().await;
}

/// The claimer says once what the database allows; a keeper that was not there then must find out by itself.
#[tokio::test]
async fn a_keeper_that_starts_in_the_middle_of_an_outage_sweeps_after_it() {
    let bench = Bench::with(|options| {
        options.databases[0].sweep_every = Duration::from_millis(50);
        options.databases[0].poll_max = Duration::from_millis(50);
        options.databases[0].fallback = Duration::from_millis(50);
    })
    .await;
    bench.calls(Op::Heads, 2).await;
    bench.faults.outage(SourceErrorKind::Unavailable);
    let board = bench.relay.board();
    let keeper = || {
        let members = bench.relay.members();
        members.into_iter().find(|m| m.role == Role::Keeper)
    };
    let before = eventually(LONG, "the outage shows, and a keeper lives", || async {
        let state = board.snapshot().databases[0].state;
        (state == DatabaseState::Waiting)
            .then(keeper)
            .flatten()
            .ok_or(format!("{state:?}"))
    })
    .await;
    before.cell.kill();
    eventually(LONG, "another keeper lives", || async {
        let now = keeper().filter(|now| now.cell.get_id() != before.cell.get_id());
        now.map(|_| ()).ok_or("none does".to_owned())
    })
    .await;
    bench.faults.heal();
    let swept = bench.faults.count(Op::Heads);
    bench.calls(Op::Heads, swept + 3).await;
}

/// What a lane stored is settled even after its claimer began anew: under the old lease it is marked only. Whoever
/// reads that mark takes the event for finished, so its row must not wait for a sweep.
#[tokio::test]
async fn an_event_settled_under_a_lease_that_had_ended_is_removed_soon() {
    let (source, sink) = (MemorySource::new("orders", 16), MemorySink::new());
    sink.keep_order(Some(Lanes {
        count: 1,
        events: 100,
        bytes: 1 << 20,
    }));
    let (relay, faults) = start_over(&source, &sink, |options| {
        options.databases[0].sweep_every = 10 * LONG;
    })
    .await;
    let bench = Bench {
        source,
        faults,
        sink,
        relay,
    };
    let (first, second) = (Gate::closed(), Gate::closed());
    let mut gates = vec![second.clone(), first.clone()];
    bench.sink.on(move |_| {
        let gate = gates.pop()?;
        Some(Answer::Hold(gate, Box::new(Answer::Take)))
    });
    bench.insert("k", 1..=1);
    bench.handed_over(1).await;
    let members = bench.relay.members();
    let settler = members.into_iter().find(|m| m.role == Role::Settler);
    settler.unwrap().cell.kill();
    bench.handed_over(2).await;
    first.open();
    // The other hand-over is never answered: it can't be what removes the row.
    bench.emptied().await;
    second.open();
}

/// A sweep sees an event that waits; before its answer is here the event is set aside, and put back by an operator before
/// the claimer has heard of that. Reading forward has missed nothing.
#[tokio::test]
async fn an_event_that_comes_back_during_a_sweep_is_not_called_missed() {
    let metrics = Metrics::new().unwrap();
    let bench = Bench::with(|options| {
        options.telemetry = metrics.telemetry();
        options.databases[0].sweep_every = Duration::from_millis(50);
    })
    .await;
    let gate = Gate::closed();
    let (held, mut refusals) = (gate.clone(), 1);
    bench.sink.on(move |_| {
        let refused = || PublishError::rejected("refused", "not this time");
        (refusals > 0).then(|| {
            refusals -= 1;
            Answer::Hold(held.clone(), Box::new(Answer::Fail(refused())))
        })
    });
    bench.insert("k", 1..=1);
    bench.handed_over(1).await;
    bench
        .faults
        .answer_late(Op::Heads, Duration::from_millis(500));
    // The first of these may have begun before its answers were late.
    let sweeps = bench.faults.count(Op::Heads);
    bench.calls(Op::Heads, sweeps + 2).await;
    gate.open();
    let all = DiscardedFilter::default();
    eventually(LONG, "it is set aside", || async {
        let list = bench.source.discarded(&all, 10).await.unwrap();
        (list.len() == 1)
            .then_some(())
            .ok_or(list.len().to_string())
    })
    .await;
    // Whatever the sweep suspects is read late.
    bench.faults.delay(Op::ReadSeqs, Duration::from_millis(700));
    let commands = bench.faults.count(Op::Commands);
    bench.calls(Op::Commands, commands + 1).await;
    bench.faults.delay(Op::Commands, Duration::from_secs(3));
    let by = Operator {
        name: "test".into(),
        reason: None,
    };
    assert_eq!(bench.source.requeue(&all, &by).await.unwrap(), 1);
    bench.received(1).await;
    bench.emptied().await;
    let shown = metrics.render().unwrap();
    let missed = shown
        .lines()
        .find(|line| line.starts_with("event_outbox_missed_total"));
    assert!(
        missed.is_some_and(|line| line.ends_with(" 0")),
        "{missed:?}"
    );
}
