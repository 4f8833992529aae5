//! K3: lost events.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::DiscardPolicy;
use outboxd::relay::DatabaseOptions;
use outboxd::source::postgres::Postgres;
use outboxd::status::{DatabaseState, Gate};

use super::bench::{
    LONG, Place, emptied, execute, holds, insert, insert_on, migrate, numbers, stored,
};
use crate::cli_bin::Workplace;
use crate::cli_run::url_of;
use crate::postgres_fixture;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{eventually, fake_nats, postgres};

/// The message id begins with the database's name, so equal ids in two databases are two messages.
#[tokio::test]
async fn c19_two_databases_with_equal_ids_lose_nothing_in_one_stream() {
    let place = Place::new().await;
    let copy = postgres::server().await.database().await;
    migrate(&copy).await;
    let second = Postgres::new(outboxd::source::postgres::Options {
        name: "billing".to_owned(),
        ..postgres_fixture::options(&copy.url)
    });
    let second = DatabaseOptions::new(Arc::new(second.unwrap()));
    let relay = place
        .setup()
        .start_with(|options| options.databases.push(second));
    let relay = relay.await;
    for database in [&place.database, &copy] {
        database
            .write(
                "insert into outbox.event (id, kind, ordering_key, payload)
                 select md5(n::text)::uuid, 'a', 'k' || n, json_build_object('n', n)
                 from generate_series(1, 10) as n",
            )
            .await;
    }
    let all = place.stored(20).await;
    let ids: BTreeSet<_> = all.iter().filter_map(|m| m.header("Nats-Msg-Id")).collect();
    assert_eq!(ids.len(), 20);
    for name in ["orders:", "billing:"] {
        assert_eq!(ids.iter().filter(|id| id.starts_with(name)).count(), 10);
    }
    emptied(&copy).await;
    place.emptied().await;
    assert_eq!(relay.metric("duplicates_total", &[]), 0.0);
    place.verified().await;
}

/// A duplicate on a first hand-over means that somebody else uses the same message ids: that is counted apart.
#[tokio::test]
#[allow(
    clippy::disallowed_methods,
    reason = "the header is written here, no row decides what it is"
)]
async fn c19_a_duplicate_that_cannot_be_one_is_counted() {
    let place = Place::new().await;
    let relay = place.relay().await;
    place.insert("warm", 1..=1).await;
    place.emptied().await;
    let id = "0199c1a0-0000-7000-8000-000000000001";
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("orders:{id}"));
    let jetstream = place.nats.jetstream().await;
    let foreign = jetstream.publish_with_headers("evt.foreign", headers, "{\"n\":0}".into());
    foreign.await.unwrap().await.unwrap();
    place
        .database
        .write(&format!(
            "insert into outbox.event (id, kind, payload) values ('{id}', 'a', '{{\"n\":1}}')"
        ))
        .await;
    place.emptied().await;
    relay
        .counted("duplicates_total", &[r#"expected="false""#], 1.0)
        .await;
    place.verified().await;
}

/// Only an acknowledgement that was read and that names the stream settles an event as published.
#[tokio::test]
async fn c20_nothing_counts_as_published_while_the_broker_is_away() {
    let mut place = Place::new().await;
    let relay = place.relay().await;
    place.insert("warm", 1..=1).await;
    place.emptied().await;
    place.nats.stop().await;
    place.insert("k", 1..=5).await;
    let board = relay.relay.board();
    eventually(LONG, "the gate is closed", || async {
        let gate = board.snapshot().sinks[0].gate;
        (gate == Gate::Closed)
            .then_some(())
            .ok_or(format!("{gate:?}"))
    })
    .await;
    holds(Duration::from_secs(1), || async {
        let left = place.number("select count(*) from outbox.event").await;
        (left == 5).then_some(()).ok_or(format!("{left} are left"))
    })
    .await;
    place.nats.restart().await;
    let all = place.stored(6).await;
    assert_eq!(numbers(&all, "k"), [1, 2, 3, 4, 5]);
    place.emptied().await;
    place.verified().await;
}

/// An outcome names number and id of its event, so it can touch no other row, however late it comes.
#[tokio::test]
async fn c22_rows_that_come_between_sending_and_settling_are_left_alone() {
    let place = Place::new().await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let relay = place.setup().broker(broker).start().await;
    relay.is(DatabaseState::Active).await;
    place.insert("warm", 1..=1).await;
    place.emptied().await;
    network.set(Mode::Lag(Duration::from_millis(300)));
    place.insert_keys(5).await;
    place.heard.wait_for(6).await;
    place
        .database
        .write(
            "insert into outbox.event (kind, ordering_key, payload, available_at)
             select 'late', 'k' || n % 5, json_build_object('n', n), now() + interval '1 h'
             from generate_series(1, 100) as n",
        )
        .await;
    eventually(LONG, "the five are settled", || async {
        let done = place.number("select count(*) from outbox.published").await;
        (done == 6).then_some(()).ok_or(format!("{done} of 6"))
    })
    .await;
    let left = "select count(*) from outbox.event where kind = 'late'";
    assert_eq!(place.number(left).await, 100);
    place.verified().await;
}

/// A table that was made anew under the relay has the same numbers and other ids: late outcomes miss, and the
/// claimer, which knows the table by its identity, reads it from the start.
#[tokio::test]
async fn c22_a_table_made_anew_gets_no_outcome_of_the_old_one() {
    // All five are out at once.
    let place = Place::with(|config| config.allow_batch_publish = false).await;
    let network = Proxy::to(place.nats.address()).await;
    let broker = format!("nats://{}", network.address());
    let relay = place.setup().broker(broker).start().await;
    relay.is(DatabaseState::Active).await;
    network.set(Mode::Lag(Duration::from_millis(350)));
    place.insert_keys(5).await;
    place.heard.wait_for(5).await;
    place
        .database
        .execute(
            "begin;
             create table outbox.event_new (like outbox.event including all);
             drop table outbox.event cascade;
             alter table outbox.event_new rename to event;
             alter sequence outbox.event_new_seq_seq rename to event_seq;
             insert into outbox.event (kind, ordering_key, payload)
             select 'new', 'k' || n, json_build_object('n', 100 + n) from generate_series(1, 5) as n;
             commit",
        )
        .await;
    // The new table knows nothing of the old one's rights: until they are granted the relay says so and waits.
    let grants = postgres_fixture::grants(&postgres_fixture::owner(&place.database));
    place.database.execute(&grants).await;
    relay.counted("lease_lost_total", &[], 5.0).await;
    let all = place.stored(10).await;
    for key in 1..=5 {
        assert_eq!(numbers(&all, &format!("k{key}")), [1, 100 + key]);
    }
    place.emptied().await;
    let kinds = "select string_agg(distinct kind, ',') from outbox.published";
    assert_eq!(place.text(kinds).await, "new");
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// An acknowledgement without a sequence names no message: the event is sent again until one does.
#[tokio::test]
async fn c25_a_duplicate_of_nothing_is_no_success() {
    let place = Place::new().await;
    let broker = fake_nats::Server::start().await;
    broker.answer(&[]);
    broker.answer(&[r#"{"stream":"EVT","seq":0,"duplicate":true}"#]);
    broker.answer(&[r#"{"stream":"EVT","seq":7}"#]);
    let relay = place.setup().broker(broker.url()).start_with(|options| {
        options.sinks[0].publish_timeout = Duration::from_millis(300);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    place.insert("k", 1..=1).await;
    place.emptied().await;
    assert_eq!(broker.published().len(), 3);
    let receipt = "select stream || ' ' || position from outbox.published";
    assert_eq!(place.text(receipt).await, "EVT 7");
    // The broker only acts as if it kept something, and an audit tells.
    assert_eq!(place.report().await.missing.count, 1);
}

/// "Full" is said of the stream, not of the event: it is waited for, and nothing is charged.
#[tokio::test]
async fn c26_a_full_stream_makes_the_relay_wait() {
    let place = Place::with(|config| {
        config.max_messages = 3;
        config.discard = DiscardPolicy::New;
    })
    .await;
    let relay = place.relay().await;
    place.insert("k", 1..=6).await;
    place.stored(3).await;
    let board = relay.relay.board();
    eventually(LONG, "the refusals are known", || async {
        let parked = board.snapshot().feeds[0].parked;
        (parked > 0).then_some(()).ok_or("not parked".to_owned())
    })
    .await;
    let left = "select string_agg(payload->>'n', ',' order by seq) from outbox.event";
    holds(Duration::from_secs(3), || async {
        let left = place.text(left).await;
        (left == "4,5,6").then_some(()).ok_or(left)
    })
    .await;
    let failures = "select count(*) from outbox.delivery where attempts > 0";
    assert_eq!(place.number(failures).await, 0);
    let jetstream = place.nats.jetstream().await;
    jetstream
        .get_stream("EVT")
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    place.emptied().await;
    assert_eq!(numbers(&place.nats.stored("EVT").await, "k"), [4, 5, 6]);
    let discarded = "select count(*) from outbox.discarded";
    assert_eq!(place.number(discarded).await, 0);
    assert_eq!(relay.metric("retried_total", &[]), 0.0);
    // Not verified: what made room was purged, and an audit tells.
    assert_eq!(place.report().await.missing.count, 3);
}

/// A stream that throws away what it has acknowledged is named by `check` and by `run`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c26_a_stream_that_throws_old_events_away_is_told() {
    let place = Place::with(|config| config.max_messages = 3).await;
    let work = Workplace::new(&place.config(&place.database.url, &place.nats.url(), ""));
    let words = "throws acknowledged events away";
    let checked = work.outboxd(&["check"]).code(3);
    assert!(checked.stdout.contains(words), "{checked:?}");
    let mut service = work.start(&["run"]);
    let url = url_of(&mut service).await;
    crate::cli_run::ready(&url).await;
    let output = service.output();
    assert!(output.contains(words), "{output}");
    place.verified().await;
}

/// A number that was not visible when reading passed it is a gap, and gaps are looked into until nobody can fill
/// them any more.
#[tokio::test]
async fn c28_a_row_far_behind_the_newest_is_still_delivered() {
    let place = Place::new().await;
    let relay = place.relay().await;
    let mut late = place.database.writer().await;
    execute(&mut late, "begin").await;
    insert_on(&mut late, "k0", 1).await;
    place.insert_keys(1_000).await;
    place.emptied().await;
    // Long after the last of them the gap is still watched.
    holds(Duration::from_secs(2), || async {
        match place.heard.at("k0", 1) {
            None => Ok(()),
            Some(_) => Err("delivered before it was committed".to_owned()),
        }
    })
    .await;
    execute(&mut late, "commit").await;
    let all = place.stored(1_001).await;
    assert_eq!(numbers(&all, "k0"), [1]);
    place.emptied().await;
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    assert_eq!(relay.metric("inversions_total", &[]), 0.0);
    place.verified().await;
}

/// Nothing that is stored depends on the cluster: pending means that the row is there.
#[tokio::test]
async fn c29_pending_rows_go_out_from_a_restored_dump() {
    let place = Place::new().await;
    let relay = place.relay().await;
    place.insert("k", 1..=2).await;
    place.emptied().await;
    relay.relay.shutdown().await.unwrap();
    place.insert("k", 3..=5).await;
    let pending = "select string_agg(id::text, ',' order by seq) from outbox.event";
    let pending = place.text(pending).await;
    let dump = dump(postgres::server().await, &place.database.name);
    let fresh = postgres::Server::start_own(&[]).await;
    let restored = fresh.database().await;
    restore(&fresh, &restored.name, &dump);

    let relay = place.setup().database(&restored.url).start().await;
    relay.is(DatabaseState::Active).await;
    insert(&restored, "k", 6..=6).await;
    let all = stored(&place.nats, 6).await;
    emptied(&restored).await;
    assert_eq!(numbers(&all, "k"), [1, 2, 3, 4, 5, 6]);
    let ids: Vec<_> = all[2..5]
        .iter()
        .map(|m| m.header("Nats-Msg-Id").unwrap().replace("orders:", ""))
        .collect();
    assert_eq!(ids.join(","), pending);
    assert_eq!(all[5].header("Outbox-Seq"), Some("6"));
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    // The history of what went out after the dump is gone with the database, and an audit tells.
    let report = place.report().await;
    assert_eq!((report.without_row.count, report.missing.count), (1, 0));
}

/// A restore under a running relay changes the table's identity, and the claimer begins again at the lowest row,
/// though the numbers it knows are given out a second time.
#[tokio::test]
async fn c29_a_restore_under_a_running_relay_is_noticed() {
    let place = Place::new().await;
    place.insert("k", 1..=3).await;
    let server = postgres::server().await;
    let dump = dump(server, &place.database.name);
    let relay = place.relay().await;
    place.insert("k", 4..=4).await;
    place.emptied().await;
    place.database.execute("drop schema outbox cascade").await;
    restore(server, &place.database.name, &dump);
    // It has the number of the fourth.
    place.insert("k", 5..=5).await;
    let all = place.stored(5).await;
    place.emptied().await;
    assert_eq!(numbers(&all, "k"), [1, 2, 3, 4, 5]);
    assert_eq!(all[3].header("Outbox-Seq"), all[4].header("Outbox-Seq"));
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

fn dump(server: &postgres::Server, database: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    program(server, "pg_dump", &["-d", database, "-f", &path]);
    file
}

fn restore(server: &postgres::Server, database: &str, dump: &tempfile::NamedTempFile) {
    let path = dump.path().display().to_string();
    let stop = "ON_ERROR_STOP=1";
    program(
        server,
        "psql",
        &["-q", "-v", stop, "-d", database, "-f", &path],
    );
}

fn program(server: &postgres::Server, name: &str, args: &[&str]) {
    let port = server.port().to_string();
    let output = std::process::Command::new(server.programs().join(name))
        .args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port])
        .args(args)
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {words}");
}
