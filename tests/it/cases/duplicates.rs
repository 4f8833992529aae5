//! K2: duplicates.

use std::collections::BTreeSet;
use std::time::Duration;

use outboxd::status::DatabaseState;
use tokio::time::Instant;

use super::bench::{LONG, PUBLISH_TIMEOUT, Place, execute, holds, numbers};
use crate::cli_bin::Workplace;
use crate::cli_run::{ready, url_of};
use crate::postgres_fixture::{number_on, watched};
use crate::support::eventually;
use crate::support::proxy::{Mode, Proxy};

/// The repeat carries the same message id, the stream drops it, and its "duplicate" counts as the first one's
/// answer.
#[tokio::test]
async fn c10_a_lost_acknowledgement_leaves_one_copy() {
    let place = Place::new().await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let relay = place.setup().broker(broker).start().await;
    relay.is(DatabaseState::Active).await;
    place.insert("warm", 1..=1).await;
    place.emptied().await;
    network.set(Mode::Mute);
    place.insert("k", 1..=1).await;
    place.heard.wait_for(2).await;
    // The first answer is lost for good once its time is over.
    place.heard.wait_for(3).await;
    network.set(Mode::Pass);
    place.emptied().await;
    let all = place.nats.stored("EVT").await;
    assert_eq!(all.len(), 2);
    let ids = place.heard.ids();
    assert!(ids[1..].iter().all(|id| *id == ids[1]), "{ids:?}");
    relay
        .counted("duplicates_total", &[r#"expected="true""#], 1.0)
        .await;
    // An answer that got lost is nobody's fault.
    assert_eq!(relay.metric("retried_total", &[]), 0.0);
    let attempts = "select attempts from outbox.published where ordering_key = 'k'";
    assert_eq!(place.number(attempts).await, 0);
    place.verified().await;
}

/// Both `run` and `check` say that the stream forgets too soon, and every copy has the same message id, by which a
/// consumer knows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c11_a_dedupe_window_that_is_too_short_is_told_and_copies_can_be_told() {
    let window = Duration::from_secs(1);
    let place = Place::with(|config| config.duplicate_window = window).await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let work = Workplace::new(&place.config(&place.database.url, &broker, ""));
    let checked = work.outboxd(&["check"]).code(3);
    assert!(checked.stdout.contains("duplicate_window"), "{checked:?}");
    let mut service = work.start(&["run"]);
    let url = url_of(&mut service).await;
    ready(&url).await;
    let output = service.output();
    let warned = output
        .lines()
        .find(|line| line.contains("duplicate_window"));
    assert!(warned.is_some_and(|line| line.contains("WARN")), "{output}");

    network.set(Mode::Mute);
    place.insert("k", 1..=1).await;
    place.stored(1).await;
    let stored_at = Instant::now();
    eventually(LONG, "the window is over", || async {
        let over = stored_at.elapsed() > window * 2;
        over.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    network.set(Mode::Pass);
    place.emptied().await;
    let all = place.nats.stored("EVT").await;
    assert!(all.len() >= 2, "the stream took no second copy");
    let ids: BTreeSet<_> = all.iter().map(|m| m.header("Nats-Msg-Id")).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert!(all.iter().all(|m| m.header("Outbox-Attempt").is_some()));
    // The copies that it is about are what an audit finds.
    assert_eq!(place.report().await.duplicated.count, 2);
}

/// A row is handed over once: it is known by its number until its deletion has been seen by every read under way.
#[tokio::test]
async fn c13_a_burst_of_due_rows_goes_out_once_each() {
    const ROWS: usize = 10_000;
    let place = Place::new().await;
    let network = Proxy::to(place.nats.address()).await;
    network.set(Mode::Lag(Duration::from_millis(10)));
    let broker = format!("nats://{}", network.address());
    let relay = place.setup().broker(broker).start_with(|options| {
        options.databases[0].poll_max = Duration::from_millis(50);
        // A slow machine must not lose answers.
        options.lease_ttl = Duration::from_secs(40);
        options.sinks[0].publish_timeout = Duration::from_secs(30);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    place
        .database
        .write(&format!(
            "insert into outbox.event (kind, ordering_key, payload, available_at)
             select 'a', 'k' || n, json_build_object('n', n), now() + interval '3 s'
             from generate_series(1, {ROWS}) as n"
        ))
        .await;
    place.emptied().await;
    place.heard.wait_for(ROWS).await;
    assert_eq!(place.heard.count(), ROWS);
    assert_eq!(place.nats.stored("EVT").await.len(), ROWS);
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    let charged = "select count(*) from outbox.published where attempts > 0";
    assert_eq!(place.number(charged).await, 0);
    place.verified().await;
}

/// Ownership, not slowness, decides who may send: a lease is renewed while its owner waits for answers.
#[tokio::test]
async fn c14_a_second_instance_takes_nothing_that_the_first_is_still_sending() {
    let place = Place::new().await.one_shard().await;
    let slow = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", slow.address());
    let lease = |options: &mut outboxd::relay::Options| {
        options.lease_ttl = Duration::from_secs(5);
        options.sinks[0].publish_timeout = Duration::from_millis(2_900);
    };
    let first = place.setup().broker(broker).start_with(lease).await;
    first.is(DatabaseState::Active).await;
    slow.set(Mode::Lag(Duration::from_millis(750)));
    place.insert("warm", 1..=1).await;
    place.emptied().await;
    place.insert_keys(20).await;
    let second = place.setup().start_with(lease).await;
    second.is(DatabaseState::Standby).await;
    // For longer than a lease there is always something under way.
    for n in 2..=5 {
        place.insert("k1", n..=n).await;
        place.heard.wait_for(20 + n as usize).await;
    }
    place.emptied().await;
    assert_eq!(place.heard.count(), 25);
    assert_eq!(second.metric("published_total", &[]), 0.0);
    second.is(DatabaseState::Standby).await;
    assert_eq!(first.metric("lease_lost_total", &[]), 0.0);
    let all = place.nats.stored("EVT").await;
    assert_eq!(numbers(&all, "k1"), [1, 2, 3, 4, 5]);
    place.verified().await;
}

/// A feed has one forward read under way; whatever asks for another one meanwhile asks for the next.
#[tokio::test]
async fn c16_wake_ups_that_overlap_start_one_read() {
    let place = Place::new().await;
    let relay = place.setup().start_with(|options| {
        options.databases[0].poll_max = Duration::from_millis(10);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    relay.listening(true).await;
    let channel = place
        .text("select 'outboxd_' || 'outbox.event'::regclass::oid::text")
        .await;
    let mut blocker = place.database.connect().await;
    let mut waker = place.database.connect().await;
    // The relay's statements wait behind this lock, so that those which overlap are seen together.
    execute(
        &mut blocker,
        "begin; lock table outbox.event in access exclusive mode",
    )
    .await;
    let reads = "select count(*) from pg_stat_activity where datname = current_database()
         and state = 'active' and query like '%where o.seq > $2%' and pid <> pg_backend_pid()";
    execute(&mut waker, &format!("notify {channel}")).await;
    eventually(LONG, "a read waits", || async {
        let waiting = watched(&place.database, reads).await;
        (waiting == 1)
            .then_some(())
            .ok_or(format!("{waiting} wait"))
    })
    .await;
    for _ in 0..100 {
        execute(&mut waker, &format!("notify {channel}")).await;
    }
    let mut sampler = place.database.superuser().await;
    let sampler = tokio::sync::Mutex::new(&mut sampler);
    holds(Duration::from_millis(300), || async {
        match number_on(*sampler.lock().await, reads).await {
            0 | 1 => Ok(()),
            more => Err(format!("{more} reads at once")),
        }
    })
    .await;
    execute(&mut blocker, "commit").await;

    // And under a storm of inserts, each with its notification.
    let storm = async {
        for n in 0..500 {
            execute(
                &mut waker,
                &format!(
                    "insert into outbox.event (kind, ordering_key, payload) values ('a', 'k{n}', '{{\"n\":1}}');
                     notify {channel}"
                ),
            )
            .await;
        }
    };
    let sampling = async {
        loop {
            let seen = number_on(*sampler.lock().await, reads).await;
            assert!(seen <= 1, "{seen} reads at once");
        }
    };
    tokio::select! {
        () = storm => {}
        () = sampling => {}
    }
    place.emptied().await;
    assert_eq!(place.heard.count(), 500);
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// A publish that could outlive the lease is refused at the start, in words that name both keys.
#[test]
fn c17_a_publish_longer_than_the_lease_is_refused() {
    let work = Workplace::sqlite_to_file("publish_timeout_is_below = 1\n");
    let config = std::fs::read_to_string(work.path("outboxd.toml")).unwrap();
    let config = config
        .replace("publish_timeout_is_below = 1\n", "[lease]\nttl = \"3s\"\n")
        .replace(
            "type = \"file\"",
            "type = \"file\"\npublish_timeout = \"5s\"",
        );
    std::fs::write(work.path("outboxd.toml"), config).unwrap();
    for command in [&["run"][..], &["check"]] {
        let ended = work.outboxd(command).code(2);
        for key in ["sinks.log.publish_timeout", "lease.ttl"] {
            assert!(ended.stderr.contains(key), "{key} in {ended:?}");
        }
    }
}

/// Renewal has a task of its own, so a run of slow answers that is longer than the lease keeps it.
#[tokio::test]
async fn c17_a_run_longer_than_the_lease_keeps_it() {
    // One event after the other.
    let place = Place::with(|config| config.allow_batch_publish = false)
        .await
        .one_shard()
        .await;
    let slow = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", slow.address());
    let owner = place.setup().broker(broker).start().await;
    owner.is(DatabaseState::Active).await;
    let standby = place.setup().start().await;
    standby.is(DatabaseState::Standby).await;
    slow.set(Mode::Lag(PUBLISH_TIMEOUT / 3));
    let token = "select max(token) from outbox.lease";
    let before = place.number(token).await;
    let begun = Instant::now();
    place.insert("k", 1..=10).await;
    place.emptied().await;
    assert!(
        begun.elapsed() > super::bench::TTL,
        "too fast to mean anything"
    );
    assert_eq!(place.heard.count(), 10);
    assert_eq!(place.number(token).await, before);
    assert_eq!(standby.metric("published_total", &[]), 0.0);
    let all = place.nats.stored("EVT").await;
    assert_eq!(numbers(&all, "k"), (1..=10).collect::<Vec<u64>>());
    place.verified().await;
}
