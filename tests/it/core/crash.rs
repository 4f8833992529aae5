//! Events that kill whoever handles them, and deaths that are no event's doing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outboxd::actor::restart::Role;
use outboxd::relay::{Options, Relay};
use outboxd::sink::Lanes;
use outboxd::sink::memory::{Answer, Memory as MemorySink};
use outboxd::source::admin::{Admin, Discarded, DiscardedFilter};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::status::ActorState;
use outboxd::testing::faults::Op;
use outboxd::testing::source::NewRow;
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use super::bench::{LONG, by_key, number, row, start_over};
use crate::support::eventually;

const KEYS: u32 = 40;
const EACH: u32 = 20;

/// An outbox with a poison event in the middle, and a sink that says when it is handed that one.
struct Bench {
    source: MemorySource,
    sink: MemorySink,
    instance: Uuid,
    poisoned: Arc<Notify>,
    deadly: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        let source = MemorySource::new("orders", 16);
        for n in 1..=EACH {
            for key in 0..KEYS {
                source.insert(&[row(&format!("k{key}"), n)]).unwrap();
            }
        }
        Self {
            source,
            sink: MemorySink::new(),
            instance: Uuid::new_v4(),
            poisoned: Arc::default(),
            deadly: Arc::default(),
        }
    }

    /// The sink never answers for this event, and whoever hands it over is about to die.
    fn poison(&self, key: &'static str, n: u32) {
        let (poisoned, deadly) = (Arc::clone(&self.poisoned), Arc::clone(&self.deadly));
        self.sink.on(move |delivery| {
            let is_it = delivery.event.ordering_key.as_deref() == Some(key)
                && delivery.event.payload.as_bytes()[..] == *format!("{{\"n\":{n}}}").as_bytes();
            if is_it {
                deadly.fetch_add(1, Ordering::Relaxed);
                poisoned.notify_one();
            }
            is_it.then_some(Answer::Hang)
        });
    }

    /// A relay under the same name each time, so that nobody has to wait for a lease to run out.
    async fn relay(&self) -> Relay {
        let change = |options: &mut Options| options.instance = self.instance;
        start_over(&self.source, &self.sink, change).await.0
    }

    async fn emptied(&self) {
        eventually(LONG, "the outbox is empty", || async {
            let pending = self.source.pending();
            (pending == 0).then_some(()).ok_or(pending.to_string())
        })
        .await;
    }

    async fn discarded(&self) -> Vec<Discarded> {
        let all = DiscardedFilter::default();
        self.source.discarded(&all, 1_000).await.unwrap()
    }

    /// The poison is set aside after three deaths, and everything else was delivered in order.
    async fn judge(&self, key: &str, n: u32) {
        self.emptied().await;
        let list = self.discarded().await;
        assert_eq!(list.len(), 1, "{list:?}");
        assert_eq!(list[0].reason, "crashed", "{list:?}");
        assert_eq!(list[0].ordering_key.as_deref(), Some(key));
        let received = by_key(&self.sink.received());
        for other in 0..KEYS {
            let other = format!("k{other}");
            let mut expected: Vec<u32> = (1..=EACH).collect();
            expected.retain(|number| other != key || *number != n);
            assert_eq!(received[&other], expected, "{other}");
        }
    }
}

/// The whole process, again and again.
async fn a_deadly_event_is_set_aside(lanes: Option<Lanes>) {
    let bench = Bench::new();
    bench.sink.keep_order(lanes);
    bench.poison("k7", 9);
    let mut relay = bench.relay().await;
    let mut deaths = 0;
    while deaths < 3 {
        tokio::time::timeout(LONG, bench.poisoned.notified())
            .await
            .expect("the poison is handed over");
        deaths += 1;
        drop(relay);
        relay = bench.relay().await;
    }
    bench.judge("k7", 9).await;
    assert_eq!(bench.deadly.load(Ordering::Relaxed), 3, "and not once more");
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_event_that_kills_its_process_is_set_aside_at_the_third_time() {
    a_deadly_event_is_set_aside(None).await;
}

#[tokio::test]
async fn an_event_that_kills_its_process_from_a_lane_is_set_aside_at_the_third_time() {
    let lanes = Lanes {
        count: 2,
        events: 50,
        bytes: 1 << 20,
    };
    a_deadly_event_is_set_aside(Some(lanes)).await;
}

/// Inside a living process: the claimer, or the one that has the event in hand.
async fn a_deadly_event_kills(role: Role) {
    let bench = Bench::new();
    bench.poison("k7", 9);
    let relay = bench.relay().await;
    for _ in 0..3 {
        tokio::time::timeout(LONG, bench.poisoned.notified())
            .await
            .expect("the poison is handed over");
        let victim = relay.members().into_iter().find(|member| {
            member.role == role && (role != Role::Sequencer || member.name.contains("k7"))
        });
        victim.expect("it lives").cell.kill();
    }
    bench.judge("k7", 9).await;
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_event_that_kills_the_claimer_is_set_aside_at_the_third_time() {
    a_deadly_event_kills(Role::Claimer).await;
}

#[tokio::test]
async fn an_event_that_kills_its_sequencer_is_set_aside_at_the_third_time() {
    a_deadly_event_kills(Role::Sequencer).await;
}

/// An event without a key, among others that are with the same sequencer.
#[tokio::test]
async fn an_event_without_a_key_that_kills_its_sequencer_is_set_aside() {
    let bench = Bench::new();
    let mut deadly = None;
    for n in 0..100 {
        let mut plain = NewRow::json("test.n", &format!("{{\"n\":{n}}}"));
        plain.id = Some(Uuid::new_v4());
        deadly = if n == 50 { plain.id } else { deadly };
        bench.source.insert(&[plain]).unwrap();
    }
    let poisoned = Arc::clone(&bench.poisoned);
    bench.sink.on(move |delivery| {
        let is_it = Some(delivery.event.id) == deadly;
        is_it.then(|| {
            poisoned.notify_one();
            Answer::Hang
        })
    });
    let relay = bench.relay().await;
    while bench.discarded().await.is_empty() {
        let poisoned = bench.poisoned.notified();
        if tokio::time::timeout(Duration::from_millis(50), poisoned)
            .await
            .is_err()
        {
            continue;
        }
        let members = relay.members();
        let victim = members
            .iter()
            .find(|member| member.role == Role::Sequencer && member.name == "(no key)");
        victim.expect("it lives").cell.kill();
    }
    bench.emptied().await;
    let list = bench.discarded().await;
    assert_eq!(list.len(), 1);
    assert_eq!((&*list[0].reason, Some(list[0].id)), ("crashed", deadly));
    let keyless = bench.sink.received();
    let keyless = keyless
        .iter()
        .filter(|item| item.delivery.event.ordering_key.is_none());
    let mut numbers: Vec<u32> = keyless.map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 99);
    relay.shutdown().await.unwrap();
}

/// Noting what is in hand takes as long as the database takes. Everything else goes on beside it: leases are renewed, and a
/// stop gives back what was about to be handed over.
#[tokio::test]
async fn a_slow_note_holds_up_neither_renewals_nor_a_stop() {
    let bench = Bench::new();
    bench.sink.on(|_| Some(Answer::Hang));
    drop(bench.relay().await);
    bench.sink.forget_scripts();
    let change = |options: &mut Options| {
        options.instance = bench.instance;
        options.lease_ttl = Duration::from_millis(2_400);
        options.sinks[0].publish_timeout = Duration::from_millis(300);
    };
    let (relay, faults) = start_over(&bench.source, &bench.sink, change).await;
    faults.delay(Op::Note, Duration::from_secs(4));
    let renewals = || faults.count(Op::Renew);
    eventually(LONG, "it notes", || async {
        let notes = faults.count(Op::Note);
        (notes > 0).then_some(()).ok_or("no note yet".to_owned())
    })
    .await;
    let (before, opened) = (renewals(), faults.count(Op::Acquire));
    eventually(Duration::from_secs(4), "leases are renewed", || async {
        let renewed = renewals() - before;
        (renewed >= 3).then_some(()).ok_or(renewed.to_string())
    })
    .await;
    assert_eq!(faults.count(Op::Acquire), opened, "nothing began anew");
    let began = Instant::now();
    let report = relay.shutdown().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(report.unknown, 0, "{report:?}");
    let relay = bench.relay().await;
    bench.emptied().await;
    relay.shutdown().await.unwrap();
}

/// A process that is killed again and again while its broker is silent: no event has done that.
#[tokio::test]
async fn what_is_out_while_somebody_kills_the_process_is_not_accused() {
    let bench = Bench::new();
    bench.sink.on(|_| Some(Answer::Hang));
    for _ in 0..5 {
        let before = bench.sink.handed_over().len();
        let relay = bench.relay().await;
        eventually(LONG, "events are out", || async {
            let out = bench.sink.handed_over().len();
            (out > before).then_some(()).ok_or(out.to_string())
        })
        .await;
        // What kills does it within a second: time is the subject here.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        drop(relay);
    }
    bench.sink.forget_scripts();
    let relay = bench.relay().await;
    bench.emptied().await;
    let list = bench.discarded().await;
    assert!(list.is_empty(), "{list:?}");
    relay.shutdown().await.unwrap();
}

/// Instances die one after the other, each with events in hand, and each after it was through with what the one before it
/// had: nobody is accused.
#[tokio::test]
async fn owners_that_die_for_reasons_of_their_own_cost_no_event() {
    let bench = Bench::new();
    for n in 0..5 {
        let relay = bench.relay().await;
        bench.emptied().await;
        bench.sink.on(|_| Some(Answer::Hang));
        let before = bench.sink.handed_over().len();
        for key in 0..100 {
            bench
                .source
                .insert(&[row(&format!("late{key}"), n)])
                .unwrap();
        }
        eventually(LONG, "events are out", || async {
            let out = bench.sink.handed_over().len();
            (out >= before + 50).then_some(()).ok_or(out.to_string())
        })
        .await;
        drop(relay);
        bench.sink.forget_scripts();
    }
    let relay = bench.relay().await;
    bench.emptied().await;
    let list = bench.discarded().await;
    assert!(list.is_empty(), "{list:?}");
    relay.shutdown().await.unwrap();
}

/// The keeper, which no event passes through: everything else goes on, and the host lives.
#[tokio::test]
async fn a_child_that_crashes_too_often_stays_down_visibly_and_nothing_else_does() {
    let bench = Bench::new();
    let relay = bench.relay().await;
    let mut killed = HashSet::new();
    let board = relay.board();
    let parked = || {
        let actors = board.snapshot().actors;
        let keeper = actors.into_iter().find(|actor| actor.kind == "keeper");
        keeper.is_some_and(|keeper| keeper.state == ActorState::Parked)
    };
    for time in 1..=11 {
        let began = Instant::now();
        let keeper = eventually(LONG, "the keeper lives", || async {
            let members = relay.members();
            members
                .into_iter()
                .find(|one| one.role == Role::Keeper && !killed.contains(&one.cell.get_id()))
                .ok_or_else(|| "it is down".to_owned())
        })
        .await;
        let took = began.elapsed();
        // After the first and the second crash.
        let soon = took < Duration::from_millis(100);
        assert!(soon || !(2..=3).contains(&time), "crash {time}: {took:?}");
        assert!(!parked(), "crash {time}");
        killed.insert(keeper.cell.get_id());
        keeper.cell.kill();
    }
    eventually(LONG, "it stays down", || async {
        parked().then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    let problems = board.ready();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(format!("{problems:?}").contains("keeper"), "{problems:?}");
    bench.emptied().await;
    bench.source.insert(&[row("after", 1)]).unwrap();
    bench.emptied().await;
    relay.shutdown().await.unwrap();
}
