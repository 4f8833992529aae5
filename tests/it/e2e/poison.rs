//! An event that cannot be delivered costs only its own key, and never more for what waits behind it.

use std::time::Duration;

use super::bench::{Bench, LONG, STREAM, assert_exactly, assert_in_order, by_key};
use crate::support::{eventually, nats, postgres};

/// Events that wait behind the poison.
const BEHIND: usize = 10_000;

/// Inserts one event of a kind of its own.
async fn poison(bench: &Bench, kind: &str, payload_bytes: usize) {
    let sql = format!(
        "insert into outbox.event (kind, ordering_key, payload)
         values ('{kind}', 'poison', json_build_object('pad', repeat('x', {payload_bytes})))"
    );
    bench.database.write(&sql).await;
}

async fn code_of_the_discard(bench: &Bench) -> (String, String) {
    sqlx::query_as("select reason, code from outbox.discarded")
        .fetch_one(&mut bench.database.connect().await)
        .await
        .unwrap()
}

async fn set_aside_at_once(kind: &str, payload_bytes: usize, code: &str) {
    let bench = Bench::new(&[]).await;
    // Refused by the stream, not by the connection.
    let config = async_nats::jetstream::stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["events.>".to_owned()],
        allow_batch_publish: true,
        max_message_size: 4_096,
        ..Default::default()
    };
    let context = bench.nats.jetstream().await;
    context.create_stream(config).await.unwrap();
    poison(&bench, kind, payload_bytes).await;
    let mut written = bench.insert(&["poison"], BEHIND).await;
    written.extend(bench.insert(&["other"], 100).await);
    let running = bench.relay().await;
    let seen = bench.wait_for(written.len()).await;
    bench.emptied().await;
    running.drained(LONG).await;
    assert_exactly(&written, &seen);
    let expected = ("permanent".to_owned(), code.to_owned());
    assert_eq!(code_of_the_discard(&bench).await, expected);
    assert_eq!(running.metric("discarded_total"), 1.0);
    assert_eq!(running.metric("retried_total"), 0.0);
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_makes_no_subject_is_set_aside_at_once() {
    set_aside_at_once("order .made", 10, "invalid_subject").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_larger_than_the_stream_takes_is_set_aside_at_once() {
    set_aside_at_once("order.made", 8_000, "too_large").await;
}

/// What the outbox table was read so far, in rows.
async fn rows_read(bench: &Bench) -> i64 {
    bench
        .number(
            "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
             from pg_stat_all_tables where relid = 'outbox.event'::regclass",
        )
        .await
}

async fn attempts(bench: &Bench) -> i64 {
    bench
        .number("select coalesce(max(attempts), 0)::bigint from outbox.delivery")
        .await
}

/// The poison is tried again and again while another key flows; what is read meanwhile is bounded,
/// whatever waits behind it.
async fn retried_for_long(nats: nats::Server, kind: &str, subjects: &str) {
    // A server of its own, whose statistics nobody else moves.
    let server = postgres::Server::start_own(&[]).await;
    let bench = Bench::over(
        server.database().await,
        nats,
        &[
            ("sinks.events.publish_timeout", "500ms"),
            ("retry.max_attempts", "1000000"),
            ("retry.base", "100ms"),
            ("retry.max", "200ms"),
        ],
    )
    .await;
    let config = async_nats::jetstream::stream::Config {
        name: STREAM.to_owned(),
        subjects: vec![subjects.to_owned()],
        allow_batch_publish: true,
        ..Default::default()
    };
    let admin = async_nats::ConnectOptions::new().user_and_password("admin".into(), "a".into());
    let admin = admin.connect(bench.nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(admin);
    let stream = context.create_stream(config).await.unwrap();
    let bench = bench.with(&[
        ("sinks.events.user", "relay"),
        ("sinks.events.password", "r"),
    ]);
    let running = bench.relay().await;

    poison(&bench, kind, 10).await;
    bench.insert(&["poison"], BEHIND).await;
    let mut flowing = 0;
    let mut flow_until = async |attempts_wanted: i64| {
        let mut flow = bench.database.writer().await;
        let began = tokio::time::Instant::now();
        while attempts(&bench).await < attempts_wanted {
            assert!(began.elapsed() < 2 * LONG, "failures are not charged");
            super::bench::insert_on(&mut flow, &["other"], 1).await;
            flowing += 1;
            let settled = flowing;
            eventually(LONG, "another key flows", || async {
                let state = stream.get_info().await.unwrap().state;
                (state.messages >= settled)
                    .then_some(())
                    .ok_or(format!("{} of {settled}", state.messages))
            })
            .await;
        }
    };
    flow_until(3).await;
    let began = tokio::time::Instant::now();
    let (attempts_before, read_before) = (attempts(&bench).await, rows_read(&bench).await);
    flow_until(attempts_before + 15).await;
    // The sessions tell their figures after a second at the latest, when they are idle.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let tried = attempts(&bench).await - attempts_before;
    let read = rows_read(&bench).await - read_before;
    println!(
        "{tried} attempts with {BEHIND} events behind, {flowing} of another key meanwhile, {read} rows read"
    );
    // An attempt is charged with the third failure, and before each the key's run is read, up to its share
    // of the budget; beside that a sample of the backlog is taken every ten seconds, and up to twenty
    // rows are touched for each event that flows.
    let samples = began.elapsed().as_secs() as i64 / 10 + 2;
    let bound = (3 * tried + 5) * 256 + samples * 10_000 + flowing as i64 * 20;
    assert!(
        read < bound,
        "{read} rows read for {tried} attempts and {flowing} other events; the bound is {bound}"
    );
    let pending = bench.number("select count(*) from outbox.event").await;
    assert_eq!(pending as usize, BEHIND + 1, "the key waits as a whole");
    let discarded = bench.number("select count(*) from outbox.discarded").await;
    assert_eq!(discarded, 0);
    running.relay.shutdown().await.unwrap();
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_that_no_stream_takes_is_retried_at_a_constant_cost() {
    let users =
        "authorization { users: [ {user: admin, password: a}, {user: relay, password: r} ] }";
    let nats = nats::Server::start_with(users).await;
    retried_for_long(nats, "nobody.knows", "events.order.>").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_that_is_not_permitted_is_retried_at_a_constant_cost() {
    let users = "authorization { users: [ {user: admin, password: a}, {user: relay, password: r, \
                 permissions: { publish: { deny: [\"events.secret.>\"] } } } ] }";
    let nats = nats::Server::start_with(users).await;
    retried_for_long(nats, "secret.made", "events.>").await;
}

/// When the cause is gone, the key goes on by itself, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healed_poison_lets_its_key_go_on_in_order() {
    let bench = Bench::new(&[("retry.base", "200ms"), ("retry.max", "500ms")]).await;
    let context = bench.nats.jetstream().await;
    let mut config = async_nats::jetstream::stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["events.order.>".to_owned()],
        allow_batch_publish: true,
        ..Default::default()
    };
    context.create_stream(config.clone()).await.unwrap();
    let _running = bench.relay().await;
    poison(&bench, "nobody.knows", 10).await;
    let behind = bench.insert(&["poison"], 1_000).await;
    let mut flow = bench.database.writer().await;
    let began = tokio::time::Instant::now();
    while attempts(&bench).await < 2 {
        assert!(began.elapsed() < LONG, "no failure was charged");
        let before = bench.count().await;
        super::bench::insert_on(&mut flow, &["other"], 1).await;
        bench.wait_for(before as usize + 1).await;
    }
    let flowed = bench.count().await as usize;
    config.subjects = vec!["events.>".to_owned()];
    context.update_stream(config).await.unwrap();
    let seen = bench.wait_within(LONG, flowed + 1_001).await;
    assert_in_order(&seen);
    assert_eq!(by_key(&seen)["poison"].len(), 1 + behind.len());
    let poison = seen.iter().find(|message| message.key == "poison").unwrap();
    assert!(poison.attempt >= 3, "{poison:?}");
    bench.verified().await;
}
