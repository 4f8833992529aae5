//! K7: shutdown and restart.

use std::time::{Duration, Instant};

use outboxd::actor::restart::Role;
use outboxd::relay::Options;
use outboxd::status::DatabaseState;

use super::bench::{GRACE, LONG, PUBLISH_TIMEOUT, Place, TTL, holds};
use crate::cli_bin::Workplace;
use crate::cli_run::{ready, url_of};
use crate::support::eventually;
use crate::support::postgres;
use crate::support::process::Process;
use crate::support::proxy::{Mode, Proxy};

const HELD: &str = "select count(*) from outbox.lease where owner is not null";

/// The service, active and connected, as a process.
async fn service(work: &Workplace) -> Process {
    let mut service = work.start(&["run"]);
    let url = url_of(&mut service).await;
    ready(&url).await;
    service
}

const PUBLISHED: &str = "select count(*) from outbox.published";

/// The number behind `name=` in the last line that has it.
#[track_caller]
fn reported(output: &str, name: &str) -> u64 {
    let label = format!("{name}=");
    let found = output.lines().rev().find_map(|line| {
        let rest = line.split_once(&label)?.1;
        rest.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    });
    found.unwrap_or_else(|| panic!("no {name} in {output}"))
}

/// Shutting down begins at the intake: what is out is waited for, the rest goes back, then the leases are released.
#[tokio::test]
async fn c73_a_stop_in_the_middle_finishes_what_is_out_and_hands_over_at_once() {
    for batches in [false, true] {
        stopped_in_the_middle(batches).await;
    }
}

async fn stopped_in_the_middle(batches: bool) {
    let place = Place::with(|config| config.allow_batch_publish = batches)
        .await
        .one_shard()
        .await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let work = Workplace::new(&place.config(&place.database.url, &broker, ""));
    let mut owner = service(&work).await;
    let standby = place.setup().start().await;
    standby.is(DatabaseState::Standby).await;
    network.set(Mode::Lag(Duration::from_millis(350)));
    place.insert_keys(40).await;
    for key in ["k1", "k2", "k3"] {
        place.insert(key, 2..=2).await;
    }
    place.heard.wait_for(40).await;
    let before = place.number(PUBLISHED).await as u64;
    owner.signal("TERM");
    let stopped = Instant::now();
    let ended = owner.wait_async(LONG).await;
    let took = stopped.elapsed();
    let output = owner.output();
    assert!(ended.success(), "{output}");
    assert!(took < GRACE + Duration::from_secs(1), "{took:?}");
    let (acked, unknown) = (reported(&output, "acked"), reported(&output, "unknown"));
    assert_eq!(unknown, 0, "{output}");
    let all = before + acked;
    match batches {
        true => assert!(all >= 40, "{before} and {output}"),
        false => assert_eq!(all, 40, "{before} and {output}"),
    }
    // Nobody has to wait for a lease to end.
    place.emptied().await;
    assert!(stopped.elapsed() < took + TTL, "{:?}", stopped.elapsed());
    assert_eq!(place.heard.count(), 43, "{:?}", place.heard.ids());
    // Counted a moment after it is written.
    eventually(LONG, "the next owner counts the rest", || async {
        let published = standby.metric("published_total", &[]);
        (published == (43 - all) as f64)
            .then_some(())
            .ok_or(published.to_string())
    })
    .await;
    place.verified().await;
}

/// Long leases, few permits: most of what was read waits for its turn.
fn queued(options: &mut Options) {
    options.lease_ttl = Duration::from_secs(60);
    options.sinks[0].max_in_flight = 5;
}

/// What waits for a permit is given back by the sequencers when they are halted, before anything is released.
#[tokio::test]
async fn c74_a_stop_gives_back_what_was_queued() {
    let place = Place::new().await.one_shard().await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let first = place.setup().broker(broker).start_with(queued).await;
    first.is(DatabaseState::Active).await;
    network.set(Mode::Lag(Duration::from_millis(350)));
    // Seven a second go out: the second one has half a minute to begin.
    place.insert_keys(200).await;
    place.heard.wait_for(5).await;
    let second = place.setup().start_with(queued).await;
    second.is(DatabaseState::Standby).await;
    let report = first.relay.shutdown().await.unwrap();
    assert_eq!(report.unknown, 0, "{report:?}");
    assert!(report.returned >= 20, "{report:?}");
    assert_eq!(place.number(HELD).await % 16, 0);
    let stopped = Instant::now();
    place.emptied().await;
    assert!(stopped.elapsed() < Duration::from_secs(5));
    assert_eq!(place.heard.count(), 200);
    assert_eq!(second.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// An answer that is dropped says that nothing was sent, and what was sent is marked as a possible repeat: both are
/// offered again at once.
#[tokio::test]
async fn c74_a_publisher_that_dies_loses_nothing_that_was_queued() {
    let place = Place::new().await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let relay = place.setup().broker(broker).start_with(queued).await;
    relay.is(DatabaseState::Active).await;
    network.set(Mode::Lag(Duration::from_millis(350)));
    place.insert_keys(50).await;
    place.heard.wait_for(5).await;
    let members = relay.relay.members();
    let publisher = members.iter().find(|m| m.role == Role::Publisher).unwrap();
    network.set(Mode::Pass);
    publisher.cell.kill();
    let killed = Instant::now();
    place.emptied().await;
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed.elapsed()
    );
    assert_eq!(place.nats.stored("EVT").await.len(), 50);
    // At most what was under way went out twice.
    assert!(place.heard.count() <= 55, "{}", place.heard.count());
    assert_eq!(relay.metric("retried_total", &[]), 0.0);
    place.verified().await;
}

/// Releasing is a courtesy with a time limit: without the database the leases end by the database's clock.
#[tokio::test]
async fn c76_a_stop_without_the_database_ends_in_time_and_the_leases_by_themselves() {
    let place = Place::new().await.one_shard().await;
    let network = Proxy::to(postgres::server().await.address()).await;
    let slow = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", slow.address());
    let url = place.database.url_through(network.port());
    let work = Workplace::new(&place.config(&url, &broker, ""));
    let mut owner = service(&work).await;
    let standby = place.setup().start().await;
    standby.is(DatabaseState::Standby).await;
    slow.set(Mode::Lag(Duration::from_millis(350)));
    place.insert_keys(20).await;
    place.heard.wait_for(20).await;
    let before = place.number(PUBLISHED).await as u64;
    network.set(Mode::Hole);
    owner.signal("TERM");
    let stopped = Instant::now();
    owner.wait_async(LONG).await;
    let took = stopped.elapsed();
    let output = owner.output();
    // The grace for what is out, two seconds for the leases, one for the goodbye.
    assert!(took < GRACE + Duration::from_secs(4), "{took:?}: {output}");
    assert!(output.contains("leases could not be released"), "{output}");
    assert!(
        output.contains("shards=1 ") || output.contains("shards=1\n"),
        "{output}"
    );
    assert_eq!(reported(&output, "unknown"), 20 - before, "{output}");
    place.emptied().await;
    let taken_over = stopped.elapsed();
    assert!(
        taken_over < took.max(TTL) + TTL + Duration::from_secs(2),
        "{taken_over:?}"
    );
    assert_eq!(place.nats.stored("EVT").await.len(), 20);
    let rest = (20 - before) as f64;
    assert_eq!(standby.metric("published_total", &[]), rest);
    place.verified().await;
}

/// An event that was sent and not answered is unknown, whatever became of its key, and the report says so.
#[tokio::test]
async fn c77_a_stop_without_the_broker_reports_what_is_unknown() {
    for batches in [false, true] {
        stopped_without_the_broker(batches).await;
    }
}

async fn stopped_without_the_broker(batches: bool) {
    let place = Place::with(|config| config.allow_batch_publish = batches).await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let work = Workplace::new(&place.config(&place.database.url, &broker, ""));
    let mut owner = service(&work).await;
    place.insert("warm", 1..=1).await;
    place.emptied().await;
    network.set(Mode::Hole);
    place.insert_keys(20).await;
    let done = Instant::now();
    eventually(LONG, "they are on their way", || async {
        // All are handed over within a moment; their first answers are due after the publish timeout.
        let under_way = done.elapsed() > PUBLISH_TIMEOUT / 2;
        under_way.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    owner.signal("TERM");
    let stopped = Instant::now();
    owner.wait_async(LONG).await;
    let took = stopped.elapsed();
    let output = owner.output();
    assert!(took < GRACE + Duration::from_secs(1), "{took:?}: {output}");
    let last = output.lines().last().unwrap();
    assert!(last.contains("WARN"), "{output}");
    assert_eq!(reported(&output, "acked"), 0, "{output}");
    let (unknown, returned) = (reported(&output, "unknown"), reported(&output, "returned"));
    assert_eq!(unknown + returned, 20, "{output}");
    // A batch begins with one message, and the rest waits for a word about it.
    assert_eq!(unknown, if batches { 1 } else { 20 }, "{output}");
    // The table agrees, and the next one can begin at once.
    assert_eq!(place.number("select count(*) from outbox.event").await, 20);
    assert_eq!(place.number(HELD).await, 0);
    let next = place.relay().await;
    place.emptied().await;
    holds(Duration::from_millis(200), || async {
        let stored = place.nats.stored("EVT").await.len();
        (stored == 21).then_some(()).ok_or(stored.to_string())
    })
    .await;
    assert_eq!(next.metric("retried_total", &[]), 0.0);
    place.verified().await;
}
