//! Counts what the relay allocates for an event, from a backlog in PostgreSQL to JetStream: `cargo bench --bench
//! allocations`. Fails when that is more than its bound. A program of its own, because an allocator that counts makes everything else slower.
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
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use outboxd::relay::{self, DatabaseOptions, Options, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::nats::{self as sink, Nats};
use outboxd::source::postgres::Postgres;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use it::support::{nats, postgres, roles};

// `stats_alloc` has the unsafe code that a counting allocator needs; there is none here.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Lines: a name, the key of event `n` in SQL, and the most allocations an event may take: 20 % above what was counted
/// when the bound was set.
const BOUNDS: [(&str, &str, f64); 3] = [
    (
        "10,000 keys",
        "'k' || (hashint4(n) & 2147483647) % 10000",
        71.0,
    ),
    ("1 key", "'hot'", 64.0),
    ("no keys", "null", 58.0),
];
const EVENTS: u32 = 20_000;
const LONG: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            let postgres = postgres::Server::start_own(&[]).await;
            let mut code = ExitCode::SUCCESS;
            for (name, key, bound) in BOUNDS {
                let (allocations, bytes) = measure(&postgres, key).await;
                println!("{name:12} {allocations:6.1} allocations and {bytes:8.0} bytes an event");
                if allocations > bound {
                    println!("{name:12} more than {bound} allocations an event: find out what they are for");
                    code = ExitCode::FAILURE;
                }
            }
            code
        })
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
    let sink = sink::Options::new("events", broker, "EVENTS", "events.{kind}");
    let sink = Nats::new(sink).unwrap();
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
