//! The database fails.

use std::time::Duration;

use tokio::time::Instant;

use super::{Bench, SHOWN, SHOWN_HALF_OPEN, Scene, lasts};
use crate::support::proxy::{Mode, Proxy};
use crate::support::roles::Role;
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
