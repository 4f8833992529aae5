//! The database fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::super::bench::number_on;
use super::{Bench, SHOWN, SHOWN_HALF_OPEN, Scene, lasts};
use crate::support::proxy::{Mode, Proxy};
use crate::support::roles::{self, Role};
use crate::support::{eventually, postgres};

/// How soon after a link is mended, or somebody's doing undone, events are published, and the rate is that of before.
const FIRST: Duration = Duration::from_secs(2);
const FULL: Duration = Duration::from_secs(10);

/// A relay that reaches its database by way of a proxy.
async fn behind_a_proxy() -> (Scene, Proxy) {
    let network = Proxy::to(postgres::server().await.address()).await;
    let bench = Bench::new(&[]).await;
    let url = bench.database.url_through(network.port());
    let bench = bench.with(&[("databases.orders.url", &url)]);
    (Scene::new(bench).await, network)
}

/// Ends what the relay has open.
async fn end_sessions(scene: &Scene) {
    let (name, role) = (&scene.bench.database.name, Role::Relay.name());
    let sql = format!(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = '{name}' and usename = '{role}'"
    );
    scene.bench.database.execute_as_superuser(&sql).await;
}

/// What a superuser sets for the whole database.
async fn set(scene: &Scene, what: &str) {
    let sql = format!("alter database \"{}\" {what}", scene.bench.database.name);
    scene.bench.database.execute_as_superuser(&sql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_refuses_connections() {
    const OUTAGE: Duration = Duration::from_secs(12);
    let (scene, network) = behind_a_proxy().await;
    network.set(Mode::Cut);
    let outage = scene.shows("database", "", SHOWN).await;
    let before = network.accepted();
    lasts(&outage, OUTAGE).await;
    let attempts = network.accepted() - before;
    assert!(attempts <= OUTAGE.as_secs() as usize, "{attempts} attempts");
    network.set(Mode::Pass);
    scene.recovers("refused", outage, FIRST, FULL).await;
}

/// Nothing passes and nothing breaks: only time tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_to_the_database_on_which_nothing_passes() {
    let (scene, network) = behind_a_proxy().await;
    network.set(Mode::Hole);
    let outage = scene.shows("database", "", SHOWN_HALF_OPEN).await;
    lasts(&outage, Duration::from_secs(20)).await;
    network.set(Mode::Pass);
    scene.recovers("half-open", outage, FIRST, FULL).await;
}

/// What is asked for is done, and nobody hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_to_the_database_that_carries_no_answers() {
    let (scene, network) = behind_a_proxy().await;
    network.set(Mode::Mute);
    let outage = scene.shows("database", "", SHOWN_HALF_OPEN).await;
    lasts(&outage, Duration::from_secs(20)).await;
    network.set(Mode::Pass);
    scene.recovers("no answers", outage, FIRST, FULL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_has_no_connections_left() {
    let scene = Scene::new(Bench::new(&[]).await).await;
    set(&scene, "connection limit 0").await;
    end_sessions(&scene).await;
    let outage = scene.shows("database", "too many connections", SHOWN).await;
    lasts(&outage, Duration::from_secs(12)).await;
    set(&scene, "connection limit -1").await;
    scene
        .recovers("no connections left", outage, FIRST, FULL)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_became_read_only() {
    let scene = Scene::new(Bench::new(&[]).await).await;
    set(&scene, "set default_transaction_read_only = on").await;
    end_sessions(&scene).await;
    let outage = scene.shows("database", "read-only", SHOWN).await;
    lasts(&outage, Duration::from_secs(12)).await;
    // Whoever undoes it is bound by it as well.
    let mut other = scene.bench.database.superuser().await;
    for sql in [
        "set default_transaction_read_only = off".to_owned(),
        format!(
            "alter database \"{}\" reset default_transaction_read_only",
            scene.bench.database.name
        ),
    ] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut other)
            .await
            .unwrap();
    }
    scene.recovers("read-only", outage, FIRST, FULL).await;
}

/// A migration of somebody else's, a forgotten session: statements wait for it until their time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_somebody_has_locked() {
    let scene = Scene::new(Bench::new(&[]).await).await;
    let mut other = scene.bench.database.superuser().await;
    for sql in [
        "begin",
        "lock table outbox.delivery in access exclusive mode",
    ] {
        sqlx::raw_sql(sql).execute(&mut other).await.unwrap();
    }
    let outage = scene.shows("database", "", SHOWN_HALF_OPEN).await;
    lasts(&outage, Duration::from_secs(20)).await;
    sqlx::raw_sql("rollback").execute(&mut other).await.unwrap();
    scene.recovers("locked table", outage, FIRST, FULL).await;
}

/// An answer to every settlement that nobody has thought of. What was sent waits to be written, and is not sent again and
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_answers_what_nobody_has_thought_of() {
    let scene = Scene::new(Bench::new(&[]).await).await;
    let database = &scene.bench.database;
    database
        .execute_as_superuser(
            "create function public.odd() returns trigger language plpgsql as
             $$ begin raise exception 'the moon is in the way' using errcode = 'ZX123'; end $$;
             create trigger odd before insert on outbox.published for each row execute function public.odd()",
        )
        .await;
    let outage = scene
        .shows("database", "the moon is in the way", SHOWN)
        .await;
    let before = scene.sent.duplicates();
    lasts(&outage, Duration::from_secs(12)).await;
    let again = scene.sent.duplicates() - before;
    assert!(again < 100, "{again} sent again");
    database
        .execute_as_superuser("drop trigger odd on outbox.published")
        .await;
    scene.recovers("an odd answer", outage, FIRST, FULL).await;
}

/// Queries work, and wake-ups do not come: nothing is late by more than a poll, and it shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_is_dead_while_queries_work() {
    let network = Proxy::for_those_who_say("LISTEN", postgres::server().await.address()).await;
    let bench = Bench::new(&[]).await;
    let url = bench.database.url_through(network.port());
    let bench = bench.with(&[("databases.orders.url", &url)]);
    let scene = Scene::new(bench).await;
    let board = scene.running.relay.board();
    network.set(Mode::Cut);
    let began = Instant::now();
    eventually(SHOWN, "the channel is shown as closed", || async {
        let listening = board.snapshot().databases[0].listening;
        (!listening).then_some(()).ok_or("it listens".to_owned())
    })
    .await;
    let shown = began.elapsed();
    let from = Instant::now();
    // The outage itself.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let rate = scene.sent.since(from) as f64 / from.elapsed().as_secs_f64();
    println!(
        "no wake-ups: {rate:.0} of {:.0} events a second meanwhile",
        scene.rate
    );
    assert!(rate > scene.rate * 0.8, "{rate} of {}", scene.rate);
    assert!(board.ready().is_empty(), "it works");
    network.set(Mode::Pass);
    let healed = Instant::now();
    eventually(super::LONG, "the channel is open again", || async {
        let listening = board.snapshot().databases[0].listening;
        listening.then_some(()).ok_or("it is closed".to_owned())
    })
    .await;
    println!(
        "no wake-ups: the channel was open again after {:.1} s",
        healed.elapsed().as_secs_f64()
    );
    let outage = super::Outage { began, shown };
    scene.recovers("no wake-ups", outage, FIRST, FULL).await;
}

/// Two databases at one sink, both with work: one of them slow, then dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_database_of_two_that_is_slow_or_dead() {
    let server = postgres::server().await;
    let sick = server.database().await;
    roles::migrate_in(&sick, "outbox", 16).await;
    let network = Proxy::to(server.address()).await;
    let url = sick.url_through(network.port());
    let bench = Bench::new(&[]).await;
    let bench = bench.with(&[("databases.sick.url", &url)]);
    let scene = Scene::new(bench).await;
    let writes = sick.clone();
    let (stop, stopped) = (Arc::clone(&scene.stop), async {
        let written = super::write_until(writes, Arc::clone(&scene.stop)).await;
        written.len()
    });
    let measures = async {
        let span = Duration::from_secs(8);
        let rate = async |name: &str| {
            let from = Instant::now();
            // The measurement itself.
            tokio::time::sleep(span).await;
            scene.sent.first_of(name, from) as f64 / from.elapsed().as_secs_f64()
        };
        let both = (rate("orders").await, rate("sick").await);
        network.set(Mode::Lag(Duration::from_millis(500)));
        let slow = rate("orders").await;
        network.set(Mode::Hole);
        let dead = rate("orders").await;
        network.set(Mode::Pass);
        stop.store(true, Ordering::Relaxed);
        (both, slow, dead)
    };
    let (written, ((healthy, other), slow, dead)) = tokio::join!(stopped, measures);
    println!(
        "beside another database: {healthy:.0} events a second (and {other:.0} of the other's), {slow:.0} while that one is \
         slow, {dead:.0} while it is dead"
    );
    assert!(other > healthy / 2.0, "the other one works too");
    assert!(slow >= healthy * 0.9 && dead >= healthy * 0.9);
    let mut connection = sick.connect().await;
    let pending = "select count(*) from outbox.event";
    eventually(super::LONG, "the sick one is emptied", || async {
        let mut connection = sick.connect().await;
        match number_on(&mut connection, pending).await {
            0 => Ok(()),
            left => Err(format!("{left} left")),
        }
    })
    .await;
    let published = number_on(&mut connection, "select count(*) from outbox.published").await;
    assert_eq!(published as usize, written);
    scene.writer.await.unwrap();
    scene.bench.emptied().await;
    scene.running.relay.shutdown().await.unwrap();
    // Not verified: the stream holds events of both.
}
