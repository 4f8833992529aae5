//! Life and death: shutdown, dropped handles, killed children, two relays at once.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use outboxd::actor::restart::Role;
use outboxd::ractor;
use outboxd::relay;
use outboxd::sink::memory::{Answer, Gate, Memory as MemorySink};
use outboxd::source::SourceErrorKind;
use outboxd::source::memory::Memory as MemorySource;
use outboxd::status::DatabaseState;
use outboxd::testing::faults::{Op, When};

use super::bench::{Bench, LONG, by_key, numbers, options_over, row, start_over};
use crate::support::eventually;

#[tokio::test]
async fn a_shutdown_lets_what_is_out_finish_and_gives_the_rest_back() {
    let bench = Bench::start().await;
    let gate = Gate::closed();
    let held = gate.clone();
    bench
        .sink
        .on(move |_| Some(Answer::Hold(held.clone(), Box::new(Answer::Take))));
    for key in 0..40 {
        bench.insert(&format!("k{key}"), 1..=3);
    }
    bench.handed_over(40).await;
    let Bench {
        source,
        sink,
        relay,
        ..
    } = bench;
    let board = relay.board();
    let stopping = tokio::spawn(relay.shutdown());
    eventually(LONG, "the drain has begun", || async {
        let ready = board.ready();
        (ready
            .iter()
            .any(|problem| problem.reason == "shutting down"))
        .then_some(())
        .ok_or(format!("{ready:?}"))
    })
    .await;
    gate.open();
    let report = stopping.await.unwrap().unwrap();
    assert_eq!((report.acked, report.returned, report.unknown), (40, 80, 0));
    assert_eq!(
        sink.received().len(),
        40,
        "nothing new left after the signal"
    );
    assert_eq!(source.pending(), 80);
    // The next relay takes over at once and goes on in order.
    let (_next, _) = start_over(&source, &sink, |_| {}).await;
    let received = sink.wait_for(120, Duration::from_secs(5)).await.unwrap();
    assert!(by_key(&received).values().all(|list| list[..] == [1, 2, 3]));
}

#[tokio::test]
async fn a_shutdown_past_the_grace_says_what_is_unknown() {
    let bench = Bench::with(|options| options.grace = Duration::from_millis(300)).await;
    bench.sink.on(|_| Some(Answer::Hang));
    for key in 0..20 {
        bench.insert(&format!("k{key}"), 1..=1);
    }
    bench.handed_over(20).await;
    let report = bench.relay.shutdown().await.unwrap();
    assert_eq!((report.acked, report.unknown), (0, 20));
}

#[tokio::test]
async fn dropping_the_handle_cancels() {
    let bench = Bench::start().await;
    bench.insert("k", 1..=5);
    bench.received(5).await;
    let Bench {
        source,
        sink,
        relay,
        ..
    } = bench;
    let board = relay.board();
    drop(relay);
    eventually(LONG, "the tree is gone", || async {
        // The last actor's state holds the board; only this test does after it.
        let holders = std::sync::Arc::strong_count(&board);
        (holders == 1)
            .then_some(())
            .ok_or(format!("{holders} holders"))
    })
    .await;
    source.insert(&[row("k", 6)]).unwrap();
    assert_eq!(sink.received().len(), 5);
}

async fn killing_under_load(role: Role) {
    let bench = Bench::with(|options| options.lease_ttl = Duration::from_secs(10)).await;
    // Answers take a moment, so that every kill finds work under way.
    bench.sink.on(|_| {
        Some(Answer::Delay(
            Duration::from_millis(2),
            Box::new(Answer::Take),
        ))
    });
    let mut killed = HashSet::new();
    for round in 0..10 {
        for n in 1..=20 {
            for key in 0..20 {
                bench.insert(&format!("k{key}"), round * 20 + n..=round * 20 + n);
            }
        }
        // Kill the next incarnation that lives and was not killed before.
        let victim = eventually(LONG, "there is one to kill", || async {
            bench
                .relay
                .members()
                .into_iter()
                .find(|member| member.role == role && !killed.contains(&member.cell.get_id()))
                .ok_or_else(|| "none lives".to_owned())
        })
        .await;
        killed.insert(victim.cell.get_id());
        victim.cell.kill();
        bench
            .sink
            .wait_until(LONG, |list| {
                by_key(list).values().map(Vec::len).sum::<usize>() >= (round as usize * 400 + 100)
            })
            .await
            .unwrap();
        if round == 4 {
            break;
        }
    }
    bench.emptied().await;
    let received = bench.sink.received();
    let keys = by_key(&received);
    assert_eq!(keys.len(), 20);
    for (key, list) in keys {
        assert_eq!(
            list,
            (1..=100).collect::<Vec<_>>(),
            "{key} after killing {role}"
        );
    }
    let duplicates = received.len() - 2_000;
    assert!(duplicates <= 5 * 2_048, "{duplicates} duplicates");
}

#[tokio::test]
async fn a_killed_publisher_heals() {
    killing_under_load(Role::Publisher).await;
}

#[tokio::test]
async fn a_killed_sequencer_heals() {
    killing_under_load(Role::Sequencer).await;
}

#[tokio::test]
async fn a_killed_claimer_heals() {
    killing_under_load(Role::Claimer).await;
}

#[tokio::test]
async fn a_killed_settler_heals() {
    killing_under_load(Role::Settler).await;
}

#[tokio::test]
async fn a_killed_keeper_heals() {
    killing_under_load(Role::Keeper).await;
}

#[tokio::test]
async fn a_killed_database_heals() {
    killing_under_load(Role::Database).await;
}

#[tokio::test]
async fn a_killed_supervisor_is_reported_and_nothing_is_sent_after_it() {
    let bench = Bench::start().await;
    bench.insert("k", 1..=1);
    bench.received(1).await;
    bench.relay.cell().kill();
    assert!(bench.relay.stopped().await.is_err());
    eventually(LONG, "every actor is gone", || async {
        let left = bench.relay.members();
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    })
    .await;
    bench.insert("k", 2..=2);
    assert_eq!(bench.sink.received().len(), 1);
}

#[tokio::test]
async fn two_relays_in_one_process_do_not_meet() {
    let (first, second) = (Bench::start().await, Bench::start().await);
    first.insert("k", 1..=100);
    second.insert("k", 101..=200);
    first.received(100).await;
    second.received(100).await;
    assert_eq!(
        numbers(&first.sink.received(), "k"),
        (1..=100).collect::<Vec<_>>()
    );
    first.relay.shutdown().await.unwrap();
    second.insert("k", 201..=201);
    let received = second.received(101).await;
    assert_eq!(numbers(&received, "k"), (101..=201).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_second_instance_stands_by_and_takes_over() {
    let source = MemorySource::new("orders", 1);
    let sink = MemorySink::new();
    let (first, _) = start_over(&source, &sink, |_| {}).await;
    source.insert(&[row("k", 1)]).unwrap();
    sink.wait_for(1, LONG).await.unwrap();
    let (second, _) = start_over(&source, &sink, |_| {}).await;
    eventually(LONG, "the second stands by", || async {
        let state = second.board().snapshot().databases[0].state;
        (state == DatabaseState::Standby)
            .then_some(())
            .ok_or(format!("{state:?}"))
    })
    .await;
    assert!(
        second.board().ready().is_empty(),
        "standing by is as it should be"
    );
    first.shutdown().await.unwrap();
    source.insert(&[row("k", 2)]).unwrap();
    let received = sink.wait_for(2, LONG).await.unwrap();
    assert_eq!(numbers(&received, "k"), [1, 2]);
}

#[tokio::test]
async fn drained_means_delivered_and_settled_and_does_not_wait_for_what_is_parked() {
    let bench = Bench::start().await;
    bench.insert("k", 1..=500);
    let later = row("later", 1).delayed(Duration::from_secs(3_600));
    bench.source.insert(&[later]).unwrap();
    tokio::time::timeout(LONG, async {
        loop {
            bench.relay.drained().await;
            if bench.sink.received().len() == 500 {
                break;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(bench.source.pending(), 1);
}

/// A host that counts the ends of its children.
struct Host;

impl ractor::Actor for Host {
    type Msg = ();
    type State = std::sync::mpsc::Sender<String>;
    type Arguments = std::sync::mpsc::Sender<String>;

    async fn pre_start(
        &self,
        _myself: ractor::ActorRef<()>,
        ends: Self::Arguments,
    ) -> Result<Self::State, ractor::ActorProcessingErr> {
        Ok(ends)
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ractor::ActorRef<()>,
        event: ractor::SupervisionEvent,
        ends: &mut Self::State,
    ) -> Result<(), ractor::ActorProcessingErr> {
        if let ractor::SupervisionEvent::ActorTerminated(_, _, reason) = event {
            ends.send(reason.unwrap_or_default()).unwrap();
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_relay_under_a_host_tells_it_when_it_ends_and_goes_with_it() {
    let (ends, ended) = std::sync::mpsc::channel();
    let (host, _) = ractor::Actor::spawn(None, Host, ends).await.unwrap();
    let source = MemorySource::new("orders", 16);
    let sink = MemorySink::new();
    let linked = || options_over(&source, &sink);
    let relay = relay::start_linked(linked(), host.get_cell())
        .await
        .unwrap();
    source.insert(&[row("k", 1)]).unwrap();
    sink.wait_for(1, LONG).await.unwrap();
    relay.shutdown().await.unwrap();
    let reason = eventually(LONG, "the host is told", || async {
        ended.try_recv().map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(reason, "shut down");

    let relay = relay::start_linked(linked(), host.get_cell())
        .await
        .unwrap();
    source.insert(&[row("k", 2)]).unwrap();
    sink.wait_for(2, LONG).await.unwrap();
    host.kill();
    assert!(relay.stopped().await.is_err());
}

#[tokio::test]
async fn a_sequencer_whose_key_is_done_serves_another() {
    let bench = Bench::start().await;
    // What each sequencer was seen to serve, and how many keys had events so far.
    let seen = std::sync::Mutex::new((HashMap::new(), 0));
    eventually(LONG, "one was seen to serve two keys", || async {
        let mut seen = seen.lock().unwrap();
        let (served, keys) = &mut *seen;
        for key in *keys..*keys + 10 {
            bench.insert(&format!("k{key}"), 1..=3);
        }
        *keys += 10;
        let again = bench.relay.members().into_iter().any(|member| {
            let before = served.insert(member.cell.get_id(), member.name.clone());
            member.role == Role::Sequencer && before.is_some_and(|name| name != member.name)
        });
        again.then_some(()).ok_or(format!("{} lived", served.len()))
    })
    .await;
    let keys = seen.lock().unwrap().1;
    let received = bench.received(keys * 3).await;
    assert!(by_key(&received).values().all(|list| list[..] == [1, 2, 3]));
    bench.emptied().await;
    // None is kept for long without work.
    eventually(LONG, "no sequencer lives", || async {
        let members = bench.relay.members();
        let alive = members.iter().filter(|m| m.role == Role::Sequencer).count();
        (alive == 0).then_some(()).ok_or(format!("{alive} do"))
    })
    .await;
}

#[tokio::test]
async fn leases_are_renewed_at_once_when_the_database_is_there_again() {
    let bench = Bench::with(|options| options.lease_ttl = 2 * LONG).await;
    bench.insert("k", 1..=1);
    bench.received(1).await;
    let renewals = bench.faults.count(Op::Renew);
    bench
        .faults
        .fail(Op::Read, 1, SourceErrorKind::Unavailable, When::Before);
    bench.insert("k", 2..=2);
    bench.received(2).await;
    // By itself the next one is due after a third of the lease. A server that came back may be another one.
    let renewed = async { bench.calls(Op::Renew, renewals + 1).await };
    tokio::time::timeout(LONG / 3, renewed).await.unwrap();
}

/// A source that refuses to read because its server is another one waits for that to be found out.
#[tokio::test]
async fn a_read_that_fails_asks_for_a_renewal_at_once() {
    let bench = Bench::with(|options| options.lease_ttl = 2 * LONG).await;
    bench.insert("k", 1..=1);
    bench.received(1).await;
    let renewals = bench.faults.count(Op::Renew);
    let forever = u32::MAX;
    bench.faults.fail(
        Op::Read,
        forever,
        SourceErrorKind::Unavailable,
        When::Before,
    );
    bench.insert("k", 2..=2);
    let renewed = async { bench.calls(Op::Renew, renewals + 1).await };
    tokio::time::timeout(LONG / 3, renewed).await.unwrap();
}

#[tokio::test]
async fn a_database_that_can_be_read_and_not_renewed_stays_in_trouble_until_it_can() {
    let bench = Bench::with(|options| options.lease_ttl = 2 * LONG).await;
    bench.insert("k", 1..=1);
    bench.received(1).await;
    bench.faults.fail(
        Op::Renew,
        u32::MAX,
        SourceErrorKind::Unavailable,
        When::Before,
    );
    let renewals = bench.faults.count(Op::Renew);
    bench
        .faults
        .fail(Op::Read, 1, SourceErrorKind::Unavailable, When::Before);
    bench.insert("k", 2..=2);
    bench.calls(Op::Renew, renewals + 1).await;
    database_is(&bench, DatabaseState::Waiting).await;
    // A read that succeeds does not call it well, and does not hurry the next renewal.
    let since = Instant::now();
    for n in 3..=12 {
        bench.insert("k", n..=n);
        bench.received(n as usize).await;
        let state = bench.relay.board().snapshot().databases[0].state;
        assert_eq!(state, DatabaseState::Waiting);
    }
    let renewals = bench.faults.count(Op::Renew) - renewals;
    assert!(renewals <= since.elapsed().as_secs() + 2, "{renewals}");
    bench.faults.heal();
    database_is(&bench, DatabaseState::Active).await;
}

async fn database_is(bench: &Bench, state: DatabaseState) {
    eventually(LONG, "the database's state is shown", || async {
        let seen = bench.relay.board().snapshot().databases[0].state;
        (seen == state).then_some(()).ok_or(format!("{seen:?}"))
    })
    .await;
}
