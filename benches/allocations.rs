//! Counts what the relay allocates for an event, from a backlog in PostgreSQL to JetStream: `cargo bench --bench
//! allocations`. A program of its own, because an allocator that counts makes everything else slower.
//!
//! Everything in this process is counted: the relay, its database driver and its broker's client.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub
)]

// The servers of the integration tests.
#[path = "../tests/it"]
mod it {
    #[allow(unused_imports)]
    pub mod support;
}

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use outboxd::relay::{self, DatabaseOptions, Options, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::nats::{self as sink, Mode, Nats};
use outboxd::source::postgres::Postgres;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use it::support::{nats, postgres, roles};

// `stats_alloc` has the unsafe code that a counting allocator needs; there is none here.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const EVENTS: u32 = 20_000;
const LONG: Duration = Duration::from_secs(300);

fn main() {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            let postgres = postgres::Server::start_own(&[]).await;
            for (name, key) in [
                ("10,000 keys", "'k' || (hashint4(n) & 2147483647) % 10000"),
                ("1 key", "'hot'"),
                ("no keys", "null"),
            ] {
                let (allocations, bytes) = measure(&postgres, key).await;
                println!("{name:12} {allocations:6.1} allocations and {bytes:8.0} bytes an event");
            }
        });
}

/// A backlog whose keys are `key` (SQL over the number `n`): allocations and bytes an event.
async fn measure(postgres: &postgres::Server, key: &str) -> (f64, f64) {
    let database = postgres.database().await;
    roles::migrate(&database).await;
    database
        .execute(&format!(
            "insert into outbox.event (kind, ordering_key, payload, headers)
               select 'order.changed', {key}, json_build_object('x', repeat('y', 1000)),
                      jsonb_build_object('request_id', 'r-' || n)
               from generate_series(1, {EVENTS}) n"
        ))
        .await;
    let nats = nats::Server::start().await;
    let stream = nats
        .create_stream(serde_json::json!({
            "name": "EVENTS", "subjects": ["events.>"], "allow_batched": true, "allow_atomic": true,
        }))
        .await;
    let options = options(&database.url, nats.url());
    let region = Region::new(ALLOCATOR);
    let relay = relay::start(options).await.unwrap();
    tokio::time::timeout(LONG, relay.drained()).await.unwrap();
    let used = region.change();
    relay.shutdown().await.unwrap();
    let stored = stream.get_info().await.unwrap().state.messages;
    assert_eq!(stored, u64::from(EVENTS), "each event once");
    let an_event = |count: usize| count as f64 / f64::from(EVENTS);
    (
        an_event(used.allocations + used.reallocations),
        an_event(used.bytes_allocated),
    )
}

fn options(database: &str, broker: String) -> Options {
    let source = Postgres::new(roles::options(database)).unwrap();
    let sink = Nats::new(sink::Options {
        name: "events".to_owned(),
        url: broker,
        user: None,
        password: None,
        password_file: None,
        token: None,
        token_file: None,
        creds_file: None,
        tls: None,
        ca_file: None,
        client_cert_file: None,
        client_key_file: None,
        stream: "EVENTS".to_owned(),
        create_stream: false,
        subject: "events.{kind}".to_owned(),
        mode: Mode::Auto,
        repeats_within: Duration::from_secs(30),
    })
    .unwrap();
    let route = Route {
        name: "all".into(),
        kinds: vec!["*".into()],
        sinks: Arc::from([Arc::from("events")]),
        retry: Policy::default(),
    };
    Options::new(
        vec![DatabaseOptions::new(Arc::new(source))],
        vec![SinkOptions::new("events", Arc::new(sink))],
        Routes::new(vec![route]),
    )
}
