//! K3 and K4: wake-ups that get lost, and channels that look open and are not.

use std::sync::Arc;
use std::time::Duration;

use outboxd::actor::restart::Role;
use outboxd::relay::DatabaseOptions;
use outboxd::source::postgres::Postgres;
use outboxd::status::DatabaseState;
use outboxd::testing::faults::{Faults, FaultySource, Op};
use tokio::time::Instant;

use super::bench::{
    Heard, LONG, Place, Running, Setup, create, execute, insert_on, migrate, stream,
};
use crate::cli_bin::Workplace;
use crate::cli_run::{ready, url_of};
use crate::postgres_fixture;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{eventually, nats, postgres};

/// Ends the session that listens.
const TERMINATE: &str = "select pg_terminate_backend(pid) from pg_stat_activity
     where datname = current_database() and application_name = 'outboxd'
       and (query ilike 'listen %' or query = 'select 1')";

/// Sessions that listen.
const LISTENERS: &str = "select count(*) from pg_stat_activity
     where datname = current_database() and query ilike 'listen %' and query not like '%pg_stat%'";

/// A lost channel means polling until it is open again, and opening it means one more look.
#[tokio::test]
async fn c23_an_event_written_while_the_channel_is_away_comes_within_a_second() {
    const DATABASES: usize = 10;
    const ROUNDS: u32 = 10;
    let broker = nats::Server::start().await;
    create(&broker, stream()).await;
    let heard = Heard::on(&broker).await;
    let mut databases = Vec::new();
    for _ in 0..DATABASES {
        let database = postgres::server().await.database().await;
        migrate(&database).await;
        databases.push(database);
    }
    let setup = Setup::new(&databases[0].url, broker.url());
    let relay = setup.start_with(|options| {
        options.databases = databases
            .iter()
            .map(|database| {
                let source = Postgres::new(outboxd::source::postgres::Options {
                    name: database.name.clone(),
                    ..postgres_fixture::options(&database.url)
                });
                DatabaseOptions {
                    // The longest pause there is; the rest of a second is for the machine.
                    poll_max: Duration::from_millis(500),
                    ..DatabaseOptions::new(Arc::new(source.unwrap()))
                }
            })
            .collect();
    });
    let relay = relay.await;
    let board = relay.relay.board();
    let rounds = databases.iter().map(|database| async {
        let mut connection = database.writer().await;
        let mut superuser = database.superuser().await;
        let name = database.name.as_str();
        for round in 1..=ROUNDS {
            eventually(LONG, "the channel is open", || async {
                let open = board.database(name, |shown| shown.listening);
                open.then_some(()).ok_or("it is not".to_owned())
            })
            .await;
            let phase = Duration::from_millis(u64::from(round) * 40);
            // Each round meets the relay in another phase between opening the channel and trusting it.
            tokio::time::sleep(phase).await;
            execute(&mut superuser, TERMINATE).await;
            insert_on(&mut connection, name, round).await;
            let written = Instant::now();
            eventually(Duration::from_secs(1), "the event is delivered", || async {
                let at = heard.at(name, u64::from(round));
                at.map(drop)
                    .ok_or(format!("{name} {round} after {:?}", written.elapsed()))
            })
            .await;
        }
    });
    futures_util::future::join_all(rounds).await;
    assert_eq!(heard.count(), DATABASES * ROUNDS as usize);
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
}

async fn delay(place: &Place, n: u32) -> Duration {
    let written = Instant::now();
    place.insert("k", n..=n).await;
    eventually(LONG, "the event is delivered", || async {
        let at = place.heard.at("k", u64::from(n));
        at.map(drop).ok_or(format!("{n} is not"))
    })
    .await;
    written.elapsed()
}

/// A silent channel is tested every ten seconds, and until it has failed the test the fallback poll goes on.
#[tokio::test]
async fn c34_a_half_open_channel_is_noticed_and_replaced() {
    let place = Place::new().await;
    let server = postgres::server().await;
    let network = Proxy::for_those_who_say("LISTEN", server.address()).await;
    let url = place.database.url_through(network.port());
    let relay = place.setup().database(url).start_with(|options| {
        options.databases[0].fallback = Duration::from_millis(500);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    relay.listening(true).await;
    network.set(Mode::Hole);
    let begun = Instant::now();
    let board = relay.relay.board();
    let mut n = 0;
    while board.snapshot().databases[0].listening {
        n += 1;
        let delay = delay(&place, n).await;
        assert!(delay < Duration::from_millis(1_500), "{delay:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "not noticed");
    }
    network.set(Mode::Pass);
    relay.listening(true).await;
    assert!(begun.elapsed() < Duration::from_secs(35));
    let next = n + 1;
    for n in next..next + 5 {
        let delay = delay(&place, n).await;
        assert!(delay < Duration::from_millis(400), "{delay:?}");
    }
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// Whatever ends the channel, its connection is thrown away and a new one is made; each loss is told once.
#[tokio::test]
async fn c35_the_channel_survives_a_reset_a_crash_and_a_termination() {
    let mut server = postgres::Server::start_own(&[]).await;
    let database = server.database().await;
    migrate(&database).await;
    let broker = nats::Server::start().await;
    create(&broker, stream()).await;
    let heard = Heard::on(&broker).await;
    let place = Place {
        database,
        nats: broker,
        heard,
    };
    let network = Proxy::for_those_who_say("LISTEN", server.address()).await;
    let url = place.database.url_through(network.port());
    let work = Workplace::new(&place.config(&url, &place.nats.url(), ""));
    let mut service = work.start(&["run"]);
    let url = url_of(&mut service).await;
    ready(&url).await;
    let listens = || async {
        eventually(Duration::from_secs(5), "the channel is open", || async {
            let open = postgres_fixture::watched(&place.database, LISTENERS).await;
            (open == 1).then_some(()).ok_or(format!("{open} sessions"))
        })
        .await;
    };
    listens().await;
    delay(&place, 1).await;
    let before = service.output().lines().count();

    network.cut_once().await;
    assert!(delay(&place, 2).await < Duration::from_secs(1));
    listens().await;

    server.kill9().await;
    server.restart().await;
    delay(&place, 3).await;
    listens().await;

    place.database.execute_as_superuser(TERMINATE).await;
    assert!(delay(&place, 4).await < Duration::from_secs(1));
    listens().await;
    assert!(delay(&place, 5).await < Duration::from_secs(1));
    let output = service.output();
    let lines: Vec<&str> = output.lines().skip(before).collect();
    let about_it = lines.iter().filter(|line| line.contains("wake-up channel"));
    // Lost and open again, three times; the rest is about the crash of the server.
    assert_eq!(about_it.count(), 6, "{lines:#?}");
    assert!(lines.len() < 15, "{lines:#?}");
    place.verified().await;
}

/// A relay that hears of events only through the channel, for a minute at least.
async fn hearing_only(place: &Place, faults: &Faults) -> Running {
    let source = Postgres::new(postgres_fixture::options(&place.database.url)).unwrap();
    let faulty = FaultySource::new(Arc::new(source), faults.clone());
    let relay = place.setup().start_with(|options| {
        options.databases[0] = DatabaseOptions::new(Arc::new(faulty));
        options.databases[0].poll_max = Duration::from_secs(60);
        options.databases[0].fallback = Duration::from_secs(60);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    relay.listening(true).await;
    relay
}

/// The channel belongs to the claimer's incarnation: a new one opens its own, and looks once it is open.
#[tokio::test]
async fn c37_a_new_claimer_is_woken_as_the_old_one_was() {
    let place = Place::new().await;
    let relay = hearing_only(&place, &Faults::default()).await;
    delay(&place, 1).await;
    let claimer = |relay: &Running| {
        let members = relay.relay.members();
        members.into_iter().find(|m| m.role == Role::Claimer)
    };
    for n in 2..=4 {
        let old = claimer(&relay).unwrap().cell;
        old.kill();
        eventually(LONG, "a new claimer lives", || async {
            let new = claimer(&relay).filter(|new| new.cell.get_id() != old.get_id());
            new.map(drop).ok_or("not yet".to_owned())
        })
        .await;
        relay.is(DatabaseState::Active).await;
        relay.listening(true).await;
        let delay = delay(&place, n).await;
        assert!(delay < Duration::from_secs(1), "{delay:?}");
    }
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// A panic beside the channel ends the channel, not the wish to have one.
#[tokio::test]
async fn c37_a_channel_that_panics_is_opened_again() {
    let place = Place::new().await;
    let faults = Faults::default();
    let relay = hearing_only(&place, &faults).await;
    delay(&place, 1).await;
    faults.panic(Op::Wait);
    // It strikes after this wake-up.
    delay(&place, 2).await;
    faults.panic(Op::Listen);
    relay.listening(false).await;
    relay.listening(true).await;
    let delay = delay(&place, 3).await;
    assert!(delay < Duration::from_secs(1), "{delay:?}");
    place.verified().await;
}
