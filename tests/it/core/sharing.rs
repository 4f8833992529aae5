//! Several instances share the shards of a database: they come, go and die, and no key notices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboxd::relay::{GapGuard, Options, Relay};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::memory::{Answer, Memory as MemorySink};
use outboxd::sink::{Delivery, PublishError};
use outboxd::source::admin::{Admin, Operator};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::source::{Source, Target};
use outboxd::status::DatabaseState;
use tokio::time::Instant;
use uuid::Uuid;

use super::bench::{LONG, by_key, row, start_over};
use crate::support::eventually;

const TTL: Duration = Duration::from_millis(3_000);
const SHARDS: u16 = 16;

fn short(options: &mut Options) {
    options.lease_ttl = TTL;
    options.sinks[0].publish_timeout = Duration::from_millis(500);
}

async fn relay(source: &MemorySource, sink: &MemorySink) -> Relay {
    start_over(source, sink, short).await.0
}

/// How many shards each owner has, the fewest first.
async fn shares(source: &MemorySource) -> Vec<usize> {
    let mut owners: BTreeMap<Uuid, usize> = BTreeMap::new();
    for lease in source.leases().await.unwrap() {
        if let Some(owner) = lease.owner {
            *owners.entry(owner).or_default() += 1;
        }
    }
    let mut shares: Vec<usize> = owners.into_values().collect();
    shares.sort_unstable();
    shares
}

/// Waits until the shards are spread like this, and tells how long it took.
async fn spread(source: &MemorySource, wanted: &[usize]) -> Duration {
    let began = Instant::now();
    eventually(LONG, "the shards are shared", || async {
        let shares = shares(source).await;
        (shares == wanted)
            .then_some(())
            .ok_or(format!("{shares:?} and not {wanted:?}"))
    })
    .await;
    began.elapsed()
}

/// Whoever joins has its share soon, and a share that is given up or left is taken soon.
#[tokio::test]
async fn shares_follow_who_is_there() {
    let source = MemorySource::new("orders", SHARDS);
    let sink = MemorySink::new();
    let first = relay(&source, &sink).await;
    spread(&source, &[16]).await;
    let second = relay(&source, &sink).await;
    let took = spread(&source, &[8, 8]).await;
    assert!(took < TTL * 2 / 3 + Duration::from_millis(500), "{took:?}");
    let third = relay(&source, &sink).await;
    let took = spread(&source, &[5, 5, 6]).await;
    assert!(took < TTL * 2 / 3 + Duration::from_millis(500), "{took:?}");

    let leaving = Instant::now();
    second.shutdown().await.unwrap();
    spread(&source, &[8, 8]).await;
    let took = leaving.elapsed();
    assert!(took < Duration::from_secs(1), "left: {took:?}");

    // It says nothing any more, and its leases end by themselves.
    drop(third);
    let took = spread(&source, &[16]).await;
    assert!(took < TTL + Duration::from_secs(2), "died: {took:?}");
    first.shutdown().await.unwrap();
    spread(&source, &[]).await;
}

fn sleepy(options: &mut Options) {
    short(options);
    options.databases[0].quiet_after = Some(Duration::from_millis(300));
}

async fn state(relay: &Relay, wanted: DatabaseState) {
    eventually(LONG, "the state is reached", || async {
        let state = relay.board().snapshot().databases[0].state;
        (state == wanted).then_some(()).ok_or(format!("{state:?}"))
    })
    .await;
}

/// Instances without work sleep together, and one event wakes them all.
#[tokio::test]
async fn instances_fall_quiet_together() {
    let source = MemorySource::new("orders", SHARDS);
    let sink = MemorySink::new();
    let first = start_over(&source, &sink, sleepy).await.0;
    let second = start_over(&source, &sink, sleepy).await.0;
    for n in 1..=3 {
        state(&first, DatabaseState::Quiet).await;
        state(&second, DatabaseState::Quiet).await;
        source.insert(&[row("k", n)]).unwrap();
        sink.wait_for(n as usize, LONG).await.unwrap();
    }
    assert_eq!(by_key(&sink.received())["k"], [1, 2, 3]);
}

/// Whoever sleeps is there when the one that works dies: joining wakes it, and it does not sleep while another works.
#[tokio::test]
async fn whoever_sleeps_takes_over_from_one_that_died() {
    let source = MemorySource::new("orders", SHARDS);
    let sink = MemorySink::new();
    let sleeper = start_over(&source, &sink, sleepy).await.0;
    state(&sleeper, DatabaseState::Quiet).await;
    let worker = relay(&source, &sink).await;
    spread(&source, &[8, 8]).await;
    // Nothing that the worker has is taken, and nothing tells the sleeper of it.
    let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
    sink.on(|_| Some(Answer::Fail(PublishError::retryable("not yet"))));
    for key in &keys {
        source.insert(&[row(key, 1)]).unwrap();
    }
    drop(worker);
    sink.forget_scripts();
    let died = Instant::now();
    eventually(LONG, "the outbox is empty", || async {
        let pending = source.pending();
        (pending == 0).then_some(()).ok_or(pending.to_string())
    })
    .await;
    let took = died.elapsed();
    assert!(took < TTL + Duration::from_secs(4), "{took:?}");
}

/// What waits, for whatever it is, waits on with the next owner of its shard, and its key goes on in order.
#[tokio::test]
async fn what_waits_moves_with_its_shard() {
    const KEYS: u32 = 24;
    let source = MemorySource::new("orders", SHARDS);
    let sink = MemorySink::new();
    let patient = |options: &mut Options| {
        short(options);
        let route = Route {
            name: "all".into(),
            kinds: vec!["*".into()],
            sinks: Arc::from([Arc::from("events")]),
            retry: Policy {
                base: Duration::from_secs(5),
                max: Duration::from_secs(5),
                ..Policy::default()
            },
        };
        options.routes = Routes::new(vec![route]);
    };
    // The first attempt of each head fails.
    sink.on(|delivery| {
        let key = delivery.event.ordering_key.as_deref().unwrap_or_default();
        let fails = key.starts_with("fails") && delivery.attempt == 1 && is_first(delivery);
        fails.then(|| Answer::Fail(PublishError::retryable("not yet")))
    });
    let by = Operator {
        name: "test".into(),
        reason: None,
    };
    let first = start_over(&source, &sink, patient).await.0;
    spread(&source, &[16]).await;
    for key in 0..KEYS {
        source.pause(&paused(key), &by).await.unwrap();
    }
    eventually(LONG, "the pauses are known", || async {
        let known = first.board().snapshot().databases[0].paused.clone();
        let all = known == [format!("{KEYS} keys are paused")];
        all.then_some(()).ok_or(format!("{known:?}"))
    })
    .await;
    for key in 0..KEYS {
        let mut delayed = row(&format!("delayed{key}"), 1);
        delayed.delay = Duration::from_secs(5);
        source.insert(&[delayed]).unwrap();
        source.insert(&[row(&format!("delayed{key}"), 2)]).unwrap();
        for n in 1..=3 {
            source.insert(&[row(&format!("fails{key}"), n)]).unwrap();
            source.insert(&[row(&format!("paused{key}"), n)]).unwrap();
        }
    }
    let written = Instant::now();
    eventually(LONG, "each head failed once", || async {
        let failed = sink.handed_over().len();
        (failed >= KEYS as usize)
            .then_some(())
            .ok_or(failed.to_string())
    })
    .await;
    let second = start_over(&source, &sink, patient).await.0;
    spread(&source, &[8, 8]).await;
    first.shutdown().await.unwrap();
    spread(&source, &[16]).await;
    assert!(
        written.elapsed() < Duration::from_secs(5),
        "all still waits"
    );
    assert!(
        sink.received().is_empty(),
        "all still waits: {:?}",
        by_key(&sink.received())
    );
    sink.wait_for(KEYS as usize * 5, LONG).await.unwrap();
    let received = by_key(&sink.received());
    assert!(received.keys().all(|key| !key.starts_with("paused")));
    for key in 0..KEYS {
        source.resume(&paused(key), &by).await.unwrap();
    }
    sink.wait_for(KEYS as usize * 8, LONG).await.unwrap();
    for item in sink.received() {
        let delivery = &item.delivery;
        let key = delivery.event.ordering_key.as_deref().unwrap_or_default();
        let again = key.starts_with("fails") && is_first(delivery);
        assert_eq!(delivery.attempt, 1 + u32::from(again), "{key}");
    }
    let received = by_key(&sink.received());
    for key in 0..KEYS {
        assert_eq!(received[&format!("delayed{key}")], [1, 2]);
        assert_eq!(received[&format!("fails{key}")], [1, 2, 3]);
        assert_eq!(received[&format!("paused{key}")], [1, 2, 3]);
    }
    second.shutdown().await.unwrap();
}

fn paused(key: u32) -> Target {
    Target::Key {
        name: format!("paused{key}"),
        sink: None,
    }
}

fn is_first(delivery: &Delivery) -> bool {
    delivery.event.payload.as_bytes()[..] == *b"{\"n\":1}"
}

/// Writers go on while instances come, go and die.
async fn in_order_through_changes(guard: GapGuard) {
    const KEYS: u32 = 60;
    let source = MemorySource::new("orders", SHARDS);
    let sink = MemorySink::new();
    let start = || async {
        let guarded = |options: &mut Options| {
            short(options);
            options.databases[0].gap_guard = guard;
        };
        start_over(&source, &sink, guarded).await.0
    };
    let writing = Arc::new(AtomicBool::new(true));
    let writer = {
        let (source, writing) = (source.clone(), Arc::clone(&writing));
        tokio::spawn(async move {
            let mut n = 0;
            while writing.load(Ordering::Relaxed) {
                n += 1;
                for key in 0..KEYS {
                    source.insert(&[row(&format!("k{key}"), n)]).unwrap();
                }
                // The pace of the writer.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            n
        })
    };
    let first = start().await;
    spread(&source, &[16]).await;
    let second = start().await;
    spread(&source, &[8, 8]).await;
    let third = start().await;
    spread(&source, &[5, 5, 6]).await;
    first.shutdown().await.unwrap();
    spread(&source, &[8, 8]).await;
    drop(second);
    spread(&source, &[16]).await;
    let fourth = start().await;
    spread(&source, &[8, 8]).await;
    writing.store(false, Ordering::Relaxed);
    let last = writer.await.unwrap();
    eventually(LONG, "the outbox is empty", || async {
        let pending = source.pending();
        (pending == 0).then_some(()).ok_or(pending.to_string())
    })
    .await;
    let all = by_key(&sink.received());
    for key in 0..KEYS {
        let expected: Vec<u32> = (1..=last).collect();
        assert_eq!(all[&format!("k{key}")], expected);
    }
    drop((third, fourth));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_in_order_while_instances_come_go_and_die() {
    in_order_through_changes(GapGuard::Off).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_in_order_when_gaps_are_waited_for() {
    in_order_through_changes(GapGuard::Hold).await;
}
