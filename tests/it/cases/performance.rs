//! K5: performance collapse. Rates are bounds that a busy machine keeps by far; the honest figures are in
//! docs/performance.md.

use std::time::{Duration, Instant};

use outboxd::status::DatabaseState;

use super::bench::{LONG, Place, execute};
use crate::cli_bin::Workplace;
use crate::support::eventually;
use crate::support::postgres;
use crate::support::proxy::{Mode, Proxy};

/// Rows of one key, or one row of each of many, in one transaction.
async fn fill(place: &Place, key: &str, rows: u32) {
    place
        .database
        .write(&format!(
            "insert into outbox.event (kind, ordering_key, payload)
             select 'k', {key}, json_build_object('n', n) from generate_series(1, {rows}) as n"
        ))
        .await;
}

/// A read is a range of the primary key with a limit: no planner setting turns it into more rows than were asked for, or
/// into other ones.
#[tokio::test]
async fn c47_a_limit_is_a_limit_under_every_planner_setting() {
    let place = Place::new().await;
    for setting in [
        "hashjoin",
        "mergejoin",
        "material",
        "sort",
        "hashagg",
        "seqscan",
        "bitmapscan",
        "indexonlyscan",
    ] {
        let role = "select current_database()";
        let database = place.text(role).await;
        place
            .database
            .execute_as_superuser(&format!(
                "alter database \"{database}\" set enable_{setting} = off"
            ))
            .await;
    }
    fill(&place, "'k' || n % 20", 2_000).await;
    let relay = place.setup().start_with(|options| {
        options.databases[0].budget_events = 16;
        options.sinks[0].max_in_flight = 16;
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    let board = relay.relay.board();
    let mut most = 0;
    eventually(LONG, "all are delivered", || {
        let feed = &board.snapshot().feeds[0];
        most = most.max(feed.in_flight);
        let published = feed.published;
        async move {
            (published == 2_000)
                .then_some(())
                .ok_or(published.to_string())
        }
    })
    .await;
    place.emptied().await;
    assert!(most <= 16, "{most} in hand");
    assert_eq!(place.heard.count(), 2_000, "each once");
}

/// Somebody's old snapshot keeps every row that was delivered since, dead, in the table and its indexes. Reads begin behind
/// them, so they cost little.
#[tokio::test]
async fn c49_an_old_snapshot_costs_little() {
    const ROWS: u32 = 20_000;
    let place = Place::new().await;
    let relay = place.relay().await;
    relay.is(DatabaseState::Active).await;
    let mut drains = 0;
    let mut drain = async |place: &Place| {
        let began = Instant::now();
        fill(place, "'k' || n % 1000", ROWS).await;
        drains += 1;
        place.heard.wait_for((drains * ROWS) as usize).await;
        place.emptied().await;
        f64::from(ROWS) / began.elapsed().as_secs_f64()
    };
    drain(&place).await;
    let before = drain(&place).await;
    let mut snapshot = place.database.superuser().await;
    execute(
        &mut snapshot,
        "begin isolation level repeatable read; select 1",
    )
    .await;
    let mut rates = Vec::new();
    for _ in 0..5 {
        rates.push(drain(&place).await);
    }
    let after = rates[4];
    println!("{before:.0} events a second before, {rates:.0?} with a snapshot");
    execute(&mut snapshot, "commit").await;
    assert!(after > before / 2.0, "{before}, then {rates:?}");
    assert_eq!(relay.metric("lease_lost_total", &[]), 0.0);
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
}

/// What only a superuser sees of others' sessions.
async fn number(place: &Place, sql: &str) -> i64 {
    let mut connection = place.database.superuser().await;
    let query = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned()));
    query.fetch_one(&mut connection).await.unwrap()
}

/// The wake-up channel's own session. While its client stands still the server cannot write to it, and that session holds
/// back what vacuum may remove: only then, and no longer than that.
#[tokio::test]
async fn c50_a_channel_that_is_not_read_holds_rows_back_no_longer_than_that() {
    let place = Place::new().await;
    let work = Workplace::new(&place.config(&place.database.url, &place.nats.url(), ""));
    let mut service = work.start(&["run"]);
    place.insert("k", 1..=1).await;
    place.emptied().await;
    let listeners =
        "from pg_stat_activity where datname = current_database() and query like 'LISTEN%'";
    let count = format!("select count(*) {listeners}");
    let holds = format!("select count(*) {listeners} and backend_xmin is not null");
    eventually(LONG, "the channel is open", || async {
        let open = number(&place, &count).await;
        (open == 1).then_some(()).ok_or(open.to_string())
    })
    .await;
    assert_eq!(number(&place, &holds).await, 0);
    service.signal("STOP");
    // More than sockets hold, each of them different.
    place
        .database
        .execute_as_superuser(
            "select count(pg_notify('outboxd_' || 'outbox.event'::regclass::oid, repeat('x', 500) || n))
             from generate_series(1, 200000) as n",
        )
        .await;
    let holding = async |wanted: i64| {
        eventually(Duration::from_secs(5), "what it holds back", || async {
            let held = number(&place, &holds).await;
            (held == wanted).then_some(()).ok_or(held.to_string())
        })
        .await;
    };
    holding(1).await;
    service.signal("CONT");
    let woken = Instant::now();
    place.insert("k", 2..=2).await;
    place.heard.wait_for(2).await;
    let took = woken.elapsed();
    println!("an event {took:?} after it goes on");
    assert!(took < Duration::from_secs(5), "{took:?}");
    holding(0).await;
}

/// Plans are made for what a statement asks, a range from a number on, and not for how many rows there were.
#[tokio::test]
async fn c55_statistics_of_an_empty_table_do_no_harm() {
    let place = Place::new().await;
    let mut connection = place.database.connect().await;
    execute(
        &mut connection,
        "alter table outbox.event set (autovacuum_enabled = off); analyze outbox.event",
    )
    .await;
    fill(&place, "'k' || n % 10000", 100_000).await;
    let began = Instant::now();
    let relay = place.relay().await;
    place.heard.wait_for(10_000).await;
    let took = began.elapsed();
    // A hundred thousand rows read again for each batch would take minutes.
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
}

/// Nothing sleeps while there is work: neither a key after its event, nor a feed after its batch.
#[tokio::test]
async fn c56_a_backlog_drains_at_the_rate_of_the_work_not_of_the_polls() {
    for (key, rows, least) in [("'k'", 5_000, 200.0), ("'k' || n % 1000", 5_000, 1_000.0)] {
        for batches in [true, false] {
            let place = Place::with(|config| config.allow_batch_publish = batches).await;
            fill(&place, key, rows).await;
            let relay = place.setup().start_with(|options| {
                options.databases[0].poll_max = Duration::from_secs(1);
            });
            let _relay = relay.await;
            place.heard.wait_for(1).await;
            let began = Instant::now();
            place.heard.wait_for(rows as usize).await;
            let rate = f64::from(rows) / began.elapsed().as_secs_f64();
            println!("{key}, in batches {batches}: {rate:.0}/s");
            assert!(rate > least, "{key}, in batches {batches}: {rate:.0}/s");
        }
    }
}

/// A database that refuses connections is asked about once a second, whoever in the relay wants something of it.
#[tokio::test]
async fn c58_a_dead_database_is_not_hammered() {
    const OUTAGE: Duration = Duration::from_secs(20);
    let place = Place::new().await;
    let network = Proxy::to(postgres::server().await.address()).await;
    let url = place.database.url_through(network.port());
    let relay = place.setup().database(url).start().await;
    relay.is(DatabaseState::Active).await;
    relay.listening(true).await;
    place.insert("k", 1..=5).await;
    place.emptied().await;
    network.set(Mode::Cut);
    let down = Instant::now();
    relay.is(DatabaseState::Waiting).await;
    let before = network.accepted();
    // The outage itself.
    tokio::time::sleep(OUTAGE).await;
    let attempts = network.accepted() - before;
    place.insert("k", 6..=6).await;
    network.set(Mode::Pass);
    let healed = Instant::now();
    place.heard.wait_for(6).await;
    let took = healed.elapsed();
    println!("{attempts} attempts in {OUTAGE:?}, first event after {took:?}");
    assert!(attempts <= OUTAGE.as_secs() as usize, "{attempts} attempts");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(down.elapsed() > OUTAGE);
}
