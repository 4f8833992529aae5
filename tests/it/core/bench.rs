//! A relay over a source and a sink in memory, with faults on demand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outboxd::event::Payload;
use outboxd::relay::{self, DatabaseOptions, Options, Relay, SinkOptions};
use outboxd::retry::Policy;
use outboxd::route::{Route, Routes};
use outboxd::sink::memory::{Memory as MemorySink, Received};
use outboxd::source::memory::Memory as MemorySource;
use outboxd::testing::faults::{Faults, FaultySource, Op};
use outboxd::testing::source::NewRow;

use crate::support::eventually;

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

pub struct Bench {
    pub source: MemorySource,
    pub faults: Faults,
    pub sink: MemorySink,
    pub relay: Relay,
}

impl Bench {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// A relay with fast retries and what `change` makes of its options.
    pub async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let source = MemorySource::new("orders", 16);
        let sink = MemorySink::new();
        let (relay, faults) = start_over(&source, &sink, change).await;
        Self {
            source,
            faults,
            sink,
            relay,
        }
    }

    /// Inserts rows of one key, numbered from `from`; one transaction each.
    pub fn insert(&self, key: &str, numbers: std::ops::RangeInclusive<u32>) {
        for n in numbers {
            self.source.insert(&[row(key, n)]).unwrap();
        }
    }

    /// Waits until the sink took `count` events.
    pub async fn received(&self, count: usize) -> Vec<Received> {
        self.sink.wait_for(count, LONG).await.unwrap()
    }

    /// Waits until the sink was handed `count` events, taken or not.
    pub async fn handed_over(&self, count: usize) {
        eventually(LONG, "the sink was handed the events", || async {
            let seen = self.sink.handed_over().len();
            (seen >= count)
                .then_some(())
                .ok_or(format!("{seen} of {count}"))
        })
        .await;
    }

    /// Waits until an operation of the source was called so often.
    pub async fn calls(&self, op: Op, count: u64) {
        eventually(LONG, "the source was called", || async {
            let seen = self.faults.count(op);
            (seen >= count)
                .then_some(())
                .ok_or(format!("{seen} of {count}"))
        })
        .await;
    }

    /// Waits until the outbox is empty.
    pub async fn emptied(&self) {
        eventually(LONG, "the outbox is empty", || async {
            match self.source.pending() {
                0 => Ok(()),
                count => Err(format!(
                    "{count} rows pending: {:?}",
                    self.relay.board().snapshot()
                )),
            }
        })
        .await;
    }
}

pub async fn start_over(
    source: &MemorySource,
    sink: &MemorySink,
    change: impl FnOnce(&mut Options),
) -> (Relay, Faults) {
    let faults = Faults::default();
    let mut options = options_over(source, sink);
    let faulty = FaultySource::new(Arc::new(source.clone()), faults.clone());
    options.databases[0].source = Arc::new(faulty);
    change(&mut options);
    (relay::start(options).await.unwrap(), faults)
}

/// Options of a relay with fast retries.
pub fn options_over(source: &MemorySource, sink: &MemorySink) -> Options {
    let route = Route {
        name: "all".into(),
        kinds: vec!["*".into()],
        sinks: Arc::from([Arc::from("events")]),
        retry: Policy {
            max_attempts: 5,
            base: Duration::from_millis(20),
            max: Duration::from_millis(100),
            ..Policy::default()
        },
    };
    let mut options = Options::new(
        vec![DatabaseOptions::new(Arc::new(source.clone()))],
        vec![SinkOptions::new("events", Arc::new(sink.clone()))],
        Routes::new(vec![route]),
    );
    options.grace = Duration::from_secs(5);
    options
}

/// A row of `key` with its number as payload and kind `test.n`.
pub fn row(key: &str, n: u32) -> NewRow {
    NewRow::json("test.n", &format!("{{\"n\":{n}}}")).key(key)
}

/// The number in a payload.
pub fn number(received: &Received) -> u32 {
    let Payload::Json(text) = &received.delivery.event.payload else {
        panic!("not JSON");
    };
    let value: serde_json::Value = serde_json::from_slice(text).unwrap();
    u32::try_from(value["n"].as_u64().unwrap()).unwrap()
}

/// First deliveries per key, in the order in which they were taken.
pub fn by_key(received: &[Received]) -> BTreeMap<String, Vec<u32>> {
    let mut seen = std::collections::HashSet::new();
    let mut keys: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for item in received {
        let event = &item.delivery.event;
        if seen.insert(event.id) {
            let key = event.ordering_key.as_deref().unwrap_or("").to_owned();
            keys.entry(key).or_default().push(number(item));
        }
    }
    keys
}

/// Numbers of one key, by first delivery.
pub fn numbers(received: &[Received], key: &str) -> Vec<u32> {
    by_key(received).remove(key).unwrap_or_default()
}

/// A row without a key.
pub fn keyless(n: u32) -> NewRow {
    NewRow::json("test.n", &format!("{{\"n\":{n}}}"))
}
