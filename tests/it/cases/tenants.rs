//! Several databases, or several outboxes in one.

use std::sync::Arc;
use std::time::Duration;

use outboxd::relay::{DatabaseOptions, Options};
use outboxd::source::Source as _;
use outboxd::source::postgres::Postgres;
use outboxd::status::DatabaseState;
use tokio::time::Instant;

use super::bench::{
    self, LONG, Place, Running, Setup, by_key, emptied, execute, insert, migrate, numbers,
};
use crate::postgres_fixture;
use crate::support::eventually;
use crate::support::postgres::{self, Database};
use crate::support::proxy::{Mode, Proxy};
use crate::support::roles::migrate_in;

/// A relay of these databases, named `db1`, `db2` and so on, by way of these addresses.
async fn relay_of(place: &Place, urls: &[String]) -> Running {
    let databases: Vec<DatabaseOptions> = urls
        .iter()
        .enumerate()
        .map(|(index, url)| {
            let mut options = postgres_fixture::options(url);
            options.name = format!("db{}", index + 1);
            let mut database = DatabaseOptions::new(Arc::new(Postgres::new(options).unwrap()));
            database.poll_max = Duration::from_millis(200);
            database
        })
        .collect();
    let all = move |options: &mut Options| options.databases = databases;
    place.setup().start_with(all).await
}

async fn is(running: &Running, name: &str, state: DatabaseState) {
    let board = running.relay.board();
    eventually(LONG, "the database is in its state", || async {
        let snapshot = board.snapshot();
        let shown = snapshot.databases.iter().find(|shown| shown.name == name);
        match shown {
            Some(shown) if shown.state == state => Ok(()),
            other => Err(format!("{other:?} is not {state:?}")),
        }
    })
    .await;
}

/// Each database has actors, connections and time limits of its own; the relay is there before any of them answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c100_a_database_that_is_dead_from_the_start_delays_no_other() {
    let place = Place::new().await;
    let server = postgres::server().await;
    let dead = server.database().await;
    migrate(&dead).await;
    insert(&dead, "dead", 1..=3).await;
    let network = Proxy::to(server.address()).await;
    network.set(Mode::Hole);
    let by_proxy = dead.url_through(network.address().port());
    let running = relay_of(&place, &[by_proxy, place.database.url.clone()]).await;
    is(&running, "db2", DatabaseState::Active).await;
    let mut waits = Vec::new();
    for n in 1..=30 {
        let before = Instant::now();
        place.insert("alive", n..=n).await;
        let at = eventually(LONG, "the event is heard", || async {
            let heard = place.heard.at("alive", n.into());
            heard.ok_or_else(|| "not yet".to_owned())
        })
        .await;
        waits.push(at - before);
        if n == 15 {
            // From dead to flapping.
            network.set(Mode::Cut);
        }
    }
    waits.sort_unstable();
    assert!(waits[28] < Duration::from_secs(1), "{waits:?}");
    let actors = running.relay.board().snapshot().actors;
    let restarts: u64 = actors.iter().map(|actor| actor.restarts).sum();
    assert_eq!(restarts, 0, "an outage is no crash: {actors:?}");

    network.set(Mode::Pass);
    emptied(&dead).await;
    let stored = place.stored(33).await;
    assert_eq!(numbers(&stored, "dead"), [1, 2, 3]);
    assert_eq!(numbers(&stored, "alive"), (1..=30).collect::<Vec<_>>());
    // Not verified: these databases have names of their own.
}

/// Every configured database drains; where row security hides rows from the relay's role, it says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c101_every_database_is_served_and_hidden_rows_are_warned_about() {
    let place = Place::new().await;
    let server = postgres::server().await;
    let others: Vec<Database> = vec![server.database().await, server.database().await];
    for database in &others {
        migrate(database).await;
    }
    let urls: Vec<String> = std::iter::once(&place.database)
        .chain(&others)
        .map(|database| database.url.clone())
        .collect();
    let _running = relay_of(&place, &urls).await;
    for (index, database) in std::iter::once(&place.database).chain(&others).enumerate() {
        insert(database, &format!("t{index}"), 1..=10).await;
    }
    let stored = place.stored(30).await;
    for index in 0..3 {
        assert_eq!(numbers(&stored, &format!("t{index}")).len(), 10);
    }

    // A role that a policy hides rows from.
    let hidden = server.database().await;
    migrate(&hidden).await;
    let mut owner = hidden.superuser().await;
    let role = format!("{}_relay", hidden.name);
    execute(
        &mut owner,
        &format!(
            "create role \"{role}\" login password 'none';
             grant usage on schema outbox to \"{role}\";
             grant select, insert, update, delete on all tables in schema outbox to \"{role}\";
             grant usage, select, update on all sequences in schema outbox to \"{role}\";
             grant execute on all functions in schema outbox to \"{role}\";
             alter table outbox.event enable row level security;
             create policy tenant on outbox.event using (kind = current_setting('app.tenant', true))"
        ),
    )
    .await;
    let mut options = postgres_fixture::options(&hidden.url);
    options.url = Some(hidden.url_as(&role, "none").into());
    let source = Postgres::new(options).unwrap();
    let opened = source.open().await.unwrap();
    assert!(
        opened
            .remarks
            .iter()
            .any(|remark| remark.contains("row security")),
        "{:?}",
        opened.remarks
    );
    source.close().await;
    execute(
        &mut owner,
        &format!("drop owned by \"{role}\"; drop role \"{role}\""),
    )
    .await;
    // Not verified: these databases have names of their own.
}

/// Nothing is global: no actor has a name, no meter is shared, and everything in a database is found by its schema.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c103_two_relays_in_one_process_do_not_mix() {
    let place = Place::new().await;
    let mut stream = bench::stream();
    stream.name = "TWO".to_owned();
    stream.subjects = vec!["two.>".to_owned()];
    bench::create(&place.nats, stream).await;
    let mut second = place.setup();
    second.source.schema = "other".into();
    migrate_in(&place.database, "other", 16).await;
    second.sink.stream = "TWO".to_owned();
    second.sink.subject = "two.{kind}".to_owned();
    let second = second.start().await;
    let first = place.relay().await;
    let both = |n: u32| {
        format!(
            "insert into outbox.event (kind, ordering_key, payload) values ('a', 'k', '{{\"n\":{n}}}');
             insert into other.event (kind, ordering_key, payload) values ('b', 'k', '{{\"n\":{n}}}')"
        )
    };
    for n in 1..=20 {
        place.database.execute(&both(n)).await;
    }
    let one = place.stored(20).await;
    eventually(LONG, "the second relay delivers", || async {
        let stored = place.nats.stored("TWO").await.len();
        (stored == 20)
            .then_some(())
            .ok_or(format!("{stored} of 20"))
    })
    .await;
    let two = place.nats.stored("TWO").await;
    assert!(one.iter().all(|message| message.subject == "evt.a"));
    assert!(two.iter().all(|message| message.subject == "two.b"));
    first.counted("published_total", &[], 20.0).await;
    second.counted("published_total", &[], 20.0).await;

    first.relay.shutdown().await.unwrap();
    place.database.execute(&both(21)).await;
    second.counted("published_total", &[], 21.0).await;
    let all = place.nats.stored("TWO").await;
    let order = by_key(all.iter().map(|m| (&m.headers, &m.payload)));
    assert_eq!(order["k"], (1..=21).collect::<Vec<_>>());
    assert_eq!(
        place.nats.stored("EVT").await.len(),
        20,
        "and the first is gone"
    );
    place.verified().await;
}

/// Locks are named after the schema: what holds up one outbox is nothing to the next in the same database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c104_two_outboxes_in_one_database_do_not_wait_for_each_other() {
    let place = Place::new().await;
    migrate_in(&place.database, "other", 16).await;
    let other = postgres_fixture::another(&place.database, |options| {
        options.schema = "other".into();
    });
    // Purges and partitions of the first wait for this.
    let mut blocker = place.database.connect().await;
    execute(
        &mut blocker,
        "begin; lock table outbox.published in access exclusive mode;
         select pg_advisory_xact_lock(hashtextextended('outboxd partitions of outbox', 0))",
    )
    .await;
    let began = Instant::now();
    other
        .purge(&postgres_fixture::retention(), 1_000)
        .await
        .unwrap();
    let mut setup = Setup::new(&place.database.url, place.nats.url());
    setup.source.schema = "other".into();
    let _running = setup.start().await;
    place
        .database
        .execute("select other.publish('a', '{\"n\":1}', 'k')")
        .await;
    place.stored(1).await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    execute(&mut blocker, "rollback").await;
    other.close().await;
    place.verified().await;
}
