//! K1: order violated.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Config;
use outboxd::relay::GapGuard;
use outboxd::status::DatabaseState;

use super::bench::{LONG, Place, Running, Setup, execute, holds, insert_on, metric_in, numbers};
use crate::cli_bin::Workplace;
use crate::cli_run::{get, url_of};
use crate::support::eventually;
use crate::support::fake_nats;
use crate::support::proxy::{Mode, Proxy};

async fn with_guard(place: &Place, guard: GapGuard) -> Running {
    let relay = place.setup().start_with(|options| {
        options.databases[0].gap_guard = guard;
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    relay
}

/// Reading waits for the transactions that may still show a lower number; a rollback ends the wait as well.
#[tokio::test]
async fn c01_a_later_number_waits_for_an_earlier_one_that_is_not_committed_yet() {
    let place = Place::new().await;
    let relay = with_guard(&place, GapGuard::Hold).await;
    // Somebody else's long transaction holds nobody up.
    let mut stranger = place.database.connect().await;
    execute(
        &mut stranger,
        "create schema app; create table app.other (n int); begin; insert into app.other values (1)",
    )
    .await;
    place.insert("warm", 1..=1).await;
    place.stored(1).await;
    let mut first = place.database.writer().await;

    execute(&mut first, "begin").await;
    insert_on(&mut first, "k", 1).await;
    place.insert("k", 2..=2).await;
    holds(Duration::from_millis(700), || async {
        match place.heard.at("k", 2) {
            None => Ok(()),
            Some(_) => Err("2 left while 1 was not committed".to_owned()),
        }
    })
    .await;
    execute(&mut first, "commit").await;
    let all = place.stored(3).await;
    assert_eq!(numbers(&all, "k"), [1, 2]);

    execute(&mut first, "begin").await;
    insert_on(&mut first, "k", 3).await;
    place.insert("k", 4..=4).await;
    holds(Duration::from_millis(300), || async {
        let heard = place.heard.at("k", 4);
        heard.map_or(Ok(()), |_| Err("4 left while 3 was possible".to_owned()))
    })
    .await;
    execute(&mut first, "rollback").await;
    let rolled_back = Instant::now();
    place.stored(4).await;
    assert!(
        rolled_back.elapsed() < Duration::from_secs(1),
        "{:?} after the rollback",
        rolled_back.elapsed()
    );
    assert_eq!(relay.metric("inversions_total", &[]), 0.0);
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// Without the guard nothing waits, and every event that comes late for its key is counted.
#[tokio::test]
async fn c01_an_inversion_is_delivered_late_and_counted() {
    let place = Place::new().await;
    let relay = with_guard(&place, GapGuard::Off).await;
    let mut first = place.database.writer().await;
    execute(&mut first, "begin").await;
    insert_on(&mut first, "k", 1).await;
    insert_on(&mut first, "other", 1).await;
    place.insert("k", 2..=2).await;
    place.stored(1).await;
    execute(&mut first, "commit").await;
    let all = place.stored(3).await;
    assert_eq!(numbers(&all, "k"), [2, 1]);
    assert_eq!(numbers(&all, "other"), [1]);
    // Only one of the two late rows came behind a later one of its key.
    relay.counted("inversions_total", &[], 1.0).await;
    assert_eq!(relay.metric("inversions_total", &[]), 1.0);
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    // Whoever reads the stream finds them the wrong way round.
    assert_eq!(place.report().await.out_of_order.count, 1);
}

/// A key has one sequencer, which offers the next event only when the one before is published or set aside.
#[tokio::test]
async fn c02_nothing_of_a_key_passes_its_failed_head() {
    const OUTAGE: &str =
        r#"{"error":{"code":503,"err_code":10008,"description":"not now"},"stream":"EVT","seq":0}"#;
    const FAULT: &str =
        r#"{"error":{"code":400,"err_code":10071,"description":"no"},"stream":"EVT","seq":0}"#;
    let place = Place::new().await;
    let broker = fake_nats::Server::start().await;
    let mut refusals = vec![FAULT, OUTAGE];
    broker.on(move |message| {
        let head = message.payload.contains(r#""n" : 1}"#) && message.subject == "evt.k";
        let refusal = if head { refusals.pop() } else { None };
        refusal.map(|answer| vec![answer.to_owned()])
    });
    let relay = place.setup().broker(broker.url()).start().await;
    relay.is(DatabaseState::Active).await;
    place.insert("k", 1..=3).await;
    relay.counted("retried_total", &[], 1.0).await;
    // Whatever is remembered of failures concerns the head alone.
    let others = "select count(*) from outbox.delivery as d join outbox.event as e using (seq)
         where e.payload->>'n' <> '1'";
    assert_eq!(place.number(others).await, 0);
    place.emptied().await;
    let sent: Vec<u64> = broker
        .published()
        .iter()
        .map(|message| super::bench::number_in(message.payload.as_bytes()))
        .collect();
    assert_eq!(sent, [1, 1, 1, 2, 3]);
    // The outage was nobody's fault, the refusal the head's.
    let attempts = "select string_agg(attempts::text, ',' order by seq) from outbox.published";
    assert_eq!(place.text(attempts).await, "1,0,0");
    // Not verified: the broker is a script and keeps nothing.
}

/// A deadline that goes on counting while the process stands still stops it from sending, and the token in the
/// lease stops its late outcome from being written.
#[tokio::test]
async fn c05_an_owner_that_wakes_up_after_its_lease_sends_and_writes_nothing() {
    stopped_after_the_first_of(3, |_| {}).await;
}

/// As above, but stopped when a batch has begun: the rest of it is not sent either.
#[tokio::test]
async fn c05_a_batch_that_had_begun_does_not_go_on_after_the_lease() {
    stopped_after_the_first_of(300, |_| {}).await;
}

#[tokio::test]
async fn c05_an_atomic_batch_that_had_begun_does_not_go_on_after_the_lease() {
    let atomic = |config: &mut Config| {
        config.allow_batch_publish = false;
        config.allow_atomic_publish = true;
    };
    stopped_after_the_first_of(300, atomic).await;
}

#[tokio::test]
async fn c05_nothing_follows_a_single_event_after_the_lease() {
    let single = |config: &mut Config| {
        config.allow_batch_publish = false;
        config.allow_atomic_publish = false;
    };
    stopped_after_the_first_of(300, single).await;
}

async fn stopped_after_the_first_of(rows: u64, change: impl FnOnce(&mut Config)) {
    let place = Place::with(change).await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let work = Workplace::new(&place.config(&place.database.url, &broker, ""));
    let mut owner = work.start(&["run"]);
    let url = url_of(&mut owner).await;
    let leases = "select count(*) from outbox.lease where owner is not null";
    eventually(LONG, "the first instance owns the shards", || async {
        let held = place.number(leases).await;
        (held == 16).then_some(()).ok_or(format!("{held} of 16"))
    })
    .await;
    crate::cli_run::ready(&url).await;
    network.set(Mode::Lag(Duration::from_millis(250)));
    // While this one is out, the others gather for one batch.
    place.insert("first", 1..=1).await;
    place.heard.wait_for(1).await;
    place
        .database
        .write(&format!(
            "insert into outbox.event (kind, ordering_key, payload)
             select 'k', 'k', json_build_object('n', n) from generate_series(1, {rows}) as n"
        ))
        .await;
    place.heard.wait_for(2).await;
    owner.signal("STOP");
    assert!(place.heard.count() < 5, "all of the batch was sent");
    let all = 1 + rows;
    let standby = Setup::new(&place.database.url, place.nats.url());
    let standby = standby.start().await;
    standby.is(DatabaseState::Active).await;
    place.stored(all as usize).await;
    place.emptied().await;
    let heard = place.heard.ids();

    owner.signal("CONT");
    eventually(LONG, "it gives its old state up", || async {
        let output = owner.output();
        let given_up = output.contains("starting again from the table under fresh leases");
        given_up.then_some(()).ok_or(output)
    })
    .await;
    holds(Duration::from_secs(1), || async {
        let now = place.heard.ids();
        (now == heard)
            .then_some(())
            .ok_or(format!("it sent {:?}", &now[heard.len()..]))
    })
    .await;
    // Its answer came after the time for it, or together with it: then the outcome is refused by the token.
    let metrics = get(&url, "/metrics").await.unwrap();
    let published = metric_in(&metrics, "published_total", &[]);
    assert!(published <= 1.0, "only the first was answered in time");
    assert!(metric_in(&metrics, "lease_lost_total", &[]) <= 1.0);
    assert_eq!(
        standby.metric("published_total", &[]) + published,
        all as f64
    );
    let stored = numbers(&place.nats.stored("EVT").await, "k");
    assert_eq!(stored, (1..=rows).collect::<Vec<_>>());
    let finished = "select count(*) from outbox.published";
    assert_eq!(place.number(finished).await, all as i64);
    place.verified().await;
}
