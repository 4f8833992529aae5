//! K4: stuck events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outboxd::retry::Policy;
use outboxd::sink::nats::Nats;
use outboxd::source::admin::{Admin, DiscardedFilter, Operator};
use outboxd::source::postgres::Postgres;
use outboxd::source::{Retention, Source};
use outboxd::status::{DatabaseState, Gate};
use tokio::time::Instant;

use super::bench::{
    LONG, Place, Setup, create, execute, holds, insert_on, number_in, numbers, stream,
};
use crate::cli_bin::Workplace;
use crate::postgres_fixture::{self, number_on};
use crate::support::proxy::{Mode, Proxy};
use crate::support::{eventually, fake_nats, postgres};

/// How long after its commit a row of a healthy key is heard.
async fn delay(place: &Place, n: u32) -> Duration {
    let written = Instant::now();
    place.insert("good", n..=n).await;
    eventually(LONG, "the healthy event is delivered", || async {
        let at = place.heard.at("good", u64::from(n));
        at.map(drop).ok_or(format!("{n} is not"))
    })
    .await;
    written.elapsed()
}

/// Inserts one row of each of `keys` keys that were due a day ago.
async fn poison(place: &Place, keys: u32) {
    place
        .database
        .write(&format!(
            "insert into outbox.event (kind, ordering_key, payload, occurred_at, available_at)
             select 'poison', 'p' || k, '{{\"n\":0}}', now() - interval '1 d', now() - interval '1 d'
             from generate_series(1, {keys}) as k"
        ))
        .await;
}

/// Keys without a stream are refused one by one, and what was refused lets those pass that were not: a sink that
/// takes one event is not down.
#[tokio::test]
async fn c31_subjects_that_no_stream_takes_hold_up_only_their_keys() {
    const ROUNDS: u32 = 20;
    let place = Place::with(|config| config.subjects = vec!["evt.good".to_owned()]).await;
    poison(&place, 160).await;
    let relay = place.relay().await;
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    for n in 1..=ROUNDS {
        pace.tick().await;
        let delay = delay(&place, n).await;
        assert!(delay < Duration::from_secs(2), "{n}: {delay:?}");
    }
    let all = place.nats.stored("EVT").await;
    assert_eq!(
        numbers(&all, "good"),
        (1..=u64::from(ROUNDS)).collect::<Vec<_>>()
    );
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// A failed key waits outside the budget, however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c31_thousands_of_failing_heads_leave_room_for_a_healthy_key() {
    let place = Place::new().await;
    let broker = fake_nats::Server::start().await;
    let came = Arc::new(AtomicUsize::new(0));
    let good = Arc::clone(&came);
    broker.on(move |message| {
        let fault =
            r#"{"error":{"code":400,"err_code":10071,"description":"no"},"stream":"EVT","seq":0}"#;
        if message.subject == "evt.poison" {
            return Some(vec![fault.to_owned()]);
        }
        good.fetch_add(1, Ordering::Relaxed);
        None
    });
    // Four times what a feed holds at once.
    poison(&place, 1_000).await;
    let mut setup = place.setup().broker(broker.url());
    setup.retry = Policy::default();
    let relay = setup.start_with(|options| options.databases[0].budget_events = 250);
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    let charged = "select count(*) from outbox.delivery";
    eventually(LONG, "each has failed once", || async {
        let charged = place.number(charged).await;
        (charged == 1_000).then_some(()).ok_or(charged.to_string())
    })
    .await;
    for n in 1..=25 {
        let written = Instant::now();
        place.insert("good", n..=n).await;
        eventually(LONG, "the healthy event is delivered", || async {
            let came = came.load(Ordering::Relaxed);
            (came == n as usize)
                .then_some(())
                .ok_or(format!("{came} of {n}"))
        })
        .await;
        let delay = written.elapsed();
        assert!(delay < Duration::from_secs(2), "{n}: {delay:?}");
    }
    // Not verified: the broker is a script and keeps nothing.
}

/// No failure that does not name the event charges it, so no length of an outage uses a budget up.
#[tokio::test]
async fn c32_an_outage_of_the_broker_charges_nobody() {
    let mut place = Place::new().await;
    let mut setup = place.setup();
    setup.retry.max_attempts = 3;
    let relay = setup.start().await;
    relay.is(DatabaseState::Active).await;
    let three = "insert into outbox.event (kind, ordering_key, payload)
         select 'k' || k, 'k' || k, json_build_object('n', n)
         from generate_series(1, 3) as n, generate_series(1, 100) as k";
    // First one that does not answer: what is sent has an unknown outcome.
    place.nats.freeze();
    place.database.write(three).await;
    let untouched = "select (select count(*) from outbox.event)
         - 1000 * (select count(*) from outbox.delivery) - 1000 * (select count(*) from outbox.discarded)";
    holds(Duration::from_secs(6), || async {
        let seen = place.number(untouched).await;
        (seen == 300)
            .then_some(())
            .ok_or(format!("{seen}, not 300"))
    })
    .await;
    // Then one that is gone.
    place.nats.thaw();
    place.nats.stop().await;
    let now = place.number("select count(*) from outbox.event").await;
    holds(Duration::from_secs(4), || async {
        let discarded = place.number("select count(*) from outbox.discarded").await;
        let charged = "select count(*) from outbox.delivery where attempts > 0";
        let charged = place.number(charged).await;
        match (discarded, charged) {
            (0, 0) => Ok(()),
            seen => Err(format!("discarded and charged: {seen:?}")),
        }
    })
    .await;
    assert!(now > 0, "the outage came too late to mean anything");
    place.nats.restart().await;
    let all = place.stored(300).await;
    place.emptied().await;
    assert_eq!(all.len(), 300);
    for key in 1..=100 {
        assert_eq!(numbers(&all, &format!("k{key}")), [1, 2, 3]);
    }
    assert_eq!(relay.metric("retried_total", &[]), 0.0);
    place.verified().await;
}

/// A sink that refuses everything is tried with one event at a time.
#[tokio::test]
async fn c32_a_broker_that_refuses_everything_is_probed_with_single_events() {
    let place = Place::new().await;
    let broker = fake_nats::Server::start().await;
    broker.on(|_| {
        let full = r#"{"error":{"code":503,"err_code":10077,"description":"full"},"stream":"EVT","seq":0}"#;
        Some(vec![full.to_owned()])
    });
    let relay = place.setup().broker(broker.url()).start().await;
    relay.is(DatabaseState::Active).await;
    place.insert_keys(300).await;
    let board = relay.relay.board();
    eventually(LONG, "the gate is closed", || async {
        let gate = board.snapshot().sinks[0].gate;
        (gate != Gate::Open).then_some(()).ok_or("open".to_owned())
    })
    .await;
    // What was under way when it closed is answered within the publish timeout.
    let closed = Instant::now();
    eventually(LONG, "what was under way is answered", || async {
        let over = closed.elapsed() > super::bench::PUBLISH_TIMEOUT;
        over.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    let before = broker.published().len();
    holds(Duration::from_secs(3), || async {
        let probes = broker.published().len() - before;
        (probes <= 15)
            .then_some(())
            .ok_or(format!("{probes} tries in three seconds"))
    })
    .await;
    broker.on(|_| None);
    place.emptied().await;
    assert_eq!(relay.metric("retried_total", &[]), 0.0);
    let tries = broker.published().len();
    assert!(tries < 1_000, "{tries} tries for 300 events");
    // Not verified: the broker is a script and keeps nothing.
}

/// Nothing is open in the database while the broker is waited for.
#[tokio::test]
async fn c38_no_transaction_is_open_while_the_broker_is_slow() {
    let place = Place::new().await;
    let network = Proxy::to(place.nats.address()).await;
    let mut setup = place
        .setup()
        .broker(format!("nats://{}", network.address()));
    // This is also what the server allows a transaction that does nothing.
    setup.source.statement_timeout = Duration::from_millis(500);
    let relay = setup.start_with(|options| {
        options.lease_ttl = Duration::from_secs(5);
        options.sinks[0].publish_timeout = Duration::from_millis(2_900);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    network.set(Mode::Lag(Duration::from_secs(1)));
    place.insert("warm", 1..=1).await;
    place.emptied().await;
    place.insert_keys(20).await;
    let mut sampler = place.database.superuser().await;
    let idle = "select count(*) from pg_stat_activity
         where datname = current_database() and application_name = 'outboxd'
           and state like 'idle in transaction%' and clock_timestamp() - state_change > interval '100 ms'";
    let sampling = async {
        loop {
            assert_eq!(number_on(&mut sampler, idle).await, 0);
            // The pace of the sampling.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = place.emptied() => {}
        () = sampling => {}
    }
    assert_eq!(place.heard.count(), 21);
    place.verified().await;
}

/// Every statement takes leases before rows, and rows in the order of their numbers, so nobody waits in a circle.
#[tokio::test]
async fn c40_nothing_deadlocks_or_piles_up_under_load_with_purge() {
    const SPAN: Duration = Duration::from_secs(8);
    let place = Place::new().await;
    let mut second = stream();
    second.name = "TWO".to_owned();
    second.subjects = vec!["two.>".to_owned()];
    create(&place.nats, second).await;
    let another_sink = Nats::new(outboxd::sink::nats::Options {
        stream: "TWO".to_owned(),
        subject: "two.{kind}".to_owned(),
        name: "second".to_owned(),
        ..place.setup().sink
    });
    let another_sink = Arc::new(another_sink.unwrap());
    let two_sinks = |options: &mut outboxd::relay::Options| {
        let mut second = outboxd::relay::SinkOptions::new("second", another_sink.clone());
        second.publish_timeout = super::bench::PUBLISH_TIMEOUT;
        options.sinks.push(second);
        let mut route = (**options.routes.iter().next().unwrap()).clone();
        route.sinks = Arc::from([Arc::from("events"), Arc::from("second")]);
        options.routes = outboxd::route::Routes::new(vec![route]);
        options.databases[0].sweep_every = Duration::from_millis(300);
    };
    let owner = place.setup().start_with(two_sinks).await;
    owner.is(DatabaseState::Active).await;
    let _standby = place.setup().start_with(two_sinks).await;
    let end = Instant::now() + SPAN;
    let keeping = (0..2).map(|_| keep(&place, end));
    let writing = (0..3).map(|_| write(&place, end));
    let blocked = "select count(*) from pg_stat_activity
         where datname = current_database() and application_name = 'outboxd'
           and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '1 s'";
    let mut sampler = place.database.superuser().await;
    let sampling = async {
        while Instant::now() < end {
            assert_eq!(number_on(&mut sampler, blocked).await, 0);
            // The pace of the sampling.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let all = futures_util::future::join3(
        futures_util::future::join_all(keeping),
        futures_util::future::join_all(writing),
        sampling,
    );
    all.await;
    place.emptied().await;
    let log = postgres::server().await.log();
    let name = format!(" {} ", place.database.name);
    let deadlocks: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(&name) && line.contains("deadlock"))
        .collect();
    assert!(deadlocks.is_empty(), "{deadlocks:#?}");
    assert_eq!(owner.metric("missed_total", &[]), 0.0);
    // Writers of one key do not wait for each other here, and the relay counts what that turns round.
    let report = place.report().await;
    let found = report.findings().map(|(_, found)| found.count);
    assert_eq!(found[..3], [0; 3], "{report:?}");
    let inversions = owner.metric("inversions_total", &[]);
    assert!(found[3] as f64 <= inversions, "{report:?}");
}

/// Purges, removes and puts back all the time, as several keepers and a busy operator would.
async fn keep(place: &Place, end: Instant) {
    let source = Postgres::new(postgres_fixture::options(&place.database.url)).unwrap();
    let operator = postgres_fixture::operator(&place.database);
    let nothing = Retention {
        published: Duration::ZERO,
        discarded: Duration::from_secs(3_600),
        ..postgres_fixture::retention()
    };
    let by = Operator {
        name: "tester".to_owned(),
        reason: None,
    };
    let sinks: [Arc<str>; 2] = ["events".into(), "second".into()];
    while Instant::now() < end {
        source.purge(&nothing, 10_000).await.unwrap();
        source.delete_done(&sinks, 10_000).await.unwrap();
        let all = DiscardedFilter::default();
        let discarded = source.discarded(&all, 20).await.unwrap();
        if !discarded.is_empty() {
            operator.requeue(&all, &by).await.unwrap();
        }
        // The pace of an operator.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// About a hundred rows a second over 50 keys, in transactions whose keys come in any order; one in fifty is refused.
async fn write(place: &Place, end: Instant) {
    let mut connection = place.database.writer().await;
    while Instant::now() < end {
        execute(
            &mut connection,
            "insert into outbox.event (kind, ordering_key, payload, headers)
             select 'a', 'k' || (random() * 49)::int, json_build_object('n', n),
                    case when random() < 0.02 then '{\"Nats-Rollup\":\"all\"}'::jsonb else '{}' end
             from generate_series(1, 5) as n",
        )
        .await;
        // The pace of the writer.
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
}

/// A configuration with too few connections is refused with the number that is needed.
#[test]
fn c41_too_few_connections_are_refused_naming_the_minimum() {
    let work = Workplace::new(
        "[databases.orders]\nurl = \"postgres://postgres@127.0.0.1:1/x\"\nmax_connections = 1\n",
    );
    let ended = work.outboxd(&["run"]).code(2);
    assert!(
        ended.stderr.contains("max_connections") && ended.stderr.contains("at least 2"),
        "{ended:?}"
    );
}

/// No call takes a second connection while it holds one, so even a single one serves all.
#[tokio::test]
async fn c41_a_single_connection_serves_everything() {
    let place = Place::new().await;
    let mut setup = place.setup();
    setup.source.max_connections = 1;
    let relay = setup.start_with(|options| {
        options.databases[0].sweep_every = Duration::from_millis(200);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    place.insert_keys(100).await;
    place.emptied().await;
    // Longer than a lease: renewals find their turn.
    holds(super::bench::TTL * 2, || async {
        let lost = relay.metric("lease_lost_total", &[]);
        (lost == 0.0).then_some(()).ok_or(format!("{lost} lost"))
    })
    .await;
    place.insert("k1", 2..=2).await;
    place.emptied().await;
    assert_eq!(place.heard.count(), 101);
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// A delayed head holds its key, as order demands; it is shown as parked and its follower in the age, and when it
/// is made due by hand the next sweep finds it.
#[tokio::test]
async fn c43_a_delayed_head_holds_its_key_visibly_and_can_be_rescheduled() {
    let place = Place::new().await;
    let relay = place.setup().start_with(|options| {
        options.databases[0].sweep_every = Duration::from_millis(500);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    place
        .database
        .write(
            "insert into outbox.event (kind, ordering_key, payload, available_at)
             values ('k', 'k', '{\"n\":1}', now() + interval '1 h')",
        )
        .await;
    place.insert("k", 2..=2).await;
    let board = relay.relay.board();
    eventually(LONG, "the key is shown as parked", || async {
        let parked = board.snapshot().feeds[0].parked;
        (parked == 1)
            .then_some(())
            .ok_or(format!("{parked} parked"))
    })
    .await;
    eventually(LONG, "the age of the one behind it is shown", || async {
        let age = relay.metric("oldest_ready_age_seconds", &[]);
        (age > 0.5).then_some(()).ok_or(format!("{age} s"))
    })
    .await;
    assert_eq!(place.heard.count(), 0);
    place
        .database
        .execute("update outbox.event set available_at = now() where payload->>'n' = '1'")
        .await;
    let all = place.stored(2).await;
    assert_eq!(numbers(&all, "k"), [1, 2]);
    // Somebody changed the row: reading has missed nothing.
    assert_eq!(relay.metric("missed_total", &[]), 0.0);
    place.verified().await;
}

/// A stream that never acknowledges is not used at all, and the reason is shown.
#[tokio::test]
async fn c44_a_stream_that_never_answers_is_refused() {
    let place = Place::with(|config| config.no_ack = true).await;
    let relay = place.relay().await;
    place.insert("k", 1..=1).await;
    let board = relay.relay.board();
    eventually(LONG, "the reason is shown", || async {
        let sink = board.snapshot().sinks.remove(0);
        let named = sink.reason.as_deref().is_some_and(|r| r.contains("no_ack"));
        (named && sink.gate == Gate::Closed)
            .then_some(())
            .ok_or(format!("{sink:?}"))
    })
    .await;
    assert_eq!(place.heard.count(), 0);
    assert_eq!(place.number("select count(*) from outbox.event").await, 1);
    place.verified().await;
}

/// Every hand-over has its own deadline and its own task, so an answer that does not come is waited for by its key
/// alone.
#[tokio::test]
async fn c44_a_publish_that_hangs_stops_nobody_else() {
    let place = Place::new().await;
    let broker = fake_nats::Server::start().await;
    broker.on(|message| (message.subject == "evt.hang").then(Vec::new));
    let relay = Setup::new(&place.database.url, broker.url());
    let relay = relay.start_with(|options| {
        options.sinks[0].publish_timeout = Duration::from_millis(300);
    });
    let relay = relay.await;
    relay.is(DatabaseState::Active).await;
    place.insert("hang", 1..=1).await;
    let mut connection = place.database.writer().await;
    let mut slowest = Duration::ZERO;
    for n in 1..=60 {
        let written = Instant::now();
        insert_on(&mut connection, "good", n).await;
        eventually(LONG, "the other key's event is sent", || async {
            let sent = broker.published();
            let sent = sent.iter().any(|m| {
                m.subject == "evt.good" && number_in(m.payload.as_bytes()) == u64::from(n)
            });
            sent.then_some(()).ok_or(format!("{n} is not"))
        })
        .await;
        slowest = slowest.max(written.elapsed());
        // The pace of the writer.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    let error = "select coalesce(max(last_error), '') from outbox.delivery";
    eventually(LONG, "the reason stands beside the event", || async {
        place.insert("good", 61..=61).await;
        let error = place.text(error).await;
        error
            .contains("no acknowledgement")
            .then_some(())
            .ok_or(error)
    })
    .await;
    // Not verified: the broker is a script and keeps nothing.
}
