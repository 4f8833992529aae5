//! K1: order violated, by more than one owner.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use outboxd::status::DatabaseState;

use super::bench::{LONG, Place, Setup, TTL, holds};
use crate::cli_bin::Workplace;
use crate::support::eventually;
use crate::support::process::Process;
use crate::support::proxy::{Mode, Proxy};

/// A key belongs to a shard and a shard to one owner: no instance takes later rows of a key that another has in hand.
#[tokio::test]
async fn c04_no_instance_takes_later_rows_of_a_key_that_another_has_in_hand() {
    let place = Place::new().await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let work = Workplace::new(&place.config(&place.database.url, &broker, ""));
    let mut owner = work.start(&["run"]);
    all_owned(&place).await;
    place.insert("warm", 1..=1).await;
    place.stored(1).await;
    network.set(Mode::Lag(Duration::from_millis(400)));
    place.insert("k", 1..=10).await;
    place.heard.wait_for(2).await;
    owner.signal("STOP");
    let stopped = Instant::now();
    // What the network still had of it arrives.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = place.heard.count();
    let other = Setup::new(&place.database.url, place.nats.url());
    let other = other.start().await;
    other.is(DatabaseState::Standby).await;
    // As long as the lease stands nothing of the key leaves, whoever is there.
    holds(Duration::from_millis(900), || async {
        let heard = place.heard.count();
        (heard == before)
            .then_some(())
            .ok_or(format!("{heard} and not {before}"))
    })
    .await;
    assert!(stopped.elapsed() < TTL, "the lease stands");
    owner.signal("CONT");
    network.set(Mode::Pass);
    place.emptied().await;
    let seen = place.heard.first_of_each();
    assert_eq!(seen["k"], (1..=10).collect::<Vec<u64>>());
}

async fn all_owned(place: &Place) {
    let leases = "select count(*) from outbox.lease where owner is not null";
    eventually(LONG, "somebody owns the shards", || async {
        let held = place.number(leases).await;
        (held == 16).then_some(()).ok_or(format!("{held} of 16"))
    })
    .await;
}

/// Who is there is read by each instance for itself, at different moments. It decides nothing: the leases do. So whatever
/// stops, dies and starts, each key's events come for the first time in their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c08_three_instances_that_stop_die_and_start_keep_every_key_in_order() {
    const KEYS: u32 = 100;
    const EACH: u64 = 50;
    let place = Place::new().await;
    let work = Workplace::new(&place.config(&place.database.url, &place.nats.url(), ""));
    let mut instances: VecDeque<Process> = (0..3).map(|_| work.start(&["run"])).collect();
    all_owned(&place).await;
    let mut stopped: Option<Process> = None;
    for round in 0..8 {
        let first = round * EACH / 8 + 1;
        let last = (round + 1) * EACH / 8;
        place
            .database
            .write(&format!(
                "insert into outbox.event (kind, ordering_key, payload)
                 select 'k' || k, 'k' || k, json_build_object('n', n)
                 from generate_series({first}, {last}) as n, generate_series(1, {KEYS}) as k order by n, k"
            ))
            .await;
        let mut victim = instances.pop_front().unwrap();
        if round % 2 == 0 {
            victim.kill9();
        } else {
            victim.signal("STOP");
        }
        instances.push_back(work.start(&["run"]));
        // The pace of the chaos: some stop for longer than a lease, some are back before it ends.
        tokio::time::sleep(Duration::from_millis(1_000 + 500 * (round % 4))).await;
        if round % 2 == 1
            && let Some(mut before) = stopped.replace(victim)
        {
            before.signal("CONT");
            instances.push_back(before);
        }
    }
    if let Some(mut last) = stopped {
        last.signal("CONT");
        instances.push_back(last);
    }
    place.emptied().await;
    let seen = place.heard.first_of_each();
    assert_eq!(seen.len(), KEYS as usize);
    for (key, numbers) in seen {
        assert_eq!(numbers, (1..=EACH).collect::<Vec<u64>>(), "{key}");
    }
    let stored = place.stored((u64::from(KEYS) * EACH) as usize).await;
    assert_eq!(
        stored.len() as u64,
        u64::from(KEYS) * EACH,
        "copies are known as such"
    );
}
