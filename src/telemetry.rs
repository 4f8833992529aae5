//! Every metric: name, unit, labels. Nothing is named elsewhere.

use opentelemetry::KeyValue;
use opentelemetry::metrics::noop::NoopMeterProvider;
use opentelemetry::metrics::{Counter, Gauge, Meter, MeterProvider as _};

use crate::source::DiscardReason;

/// The instruments, built once from the embedder's or the binary's meter.
///
/// Labels come from closed sets: `database` and `sink` are names from configuration, `reason` a word of
/// [`DiscardReason`]. Never a key, a subject or an id.
#[derive(Debug, Clone)]
pub struct Telemetry {
    published: Counter<u64>,
    retried: Counter<u64>,
    discarded: Counter<u64>,
    lease_lost: Counter<u64>,
    enqueue_failed: Counter<u64>,
    missed: Counter<u64>,
    inversions: Counter<u64>,
    unrouted: Counter<u64>,
    duplicates: Counter<u64>,
    restarts: Counter<u64>,
    oldest_ready_age: Gauge<f64>,
}

impl Telemetry {
    /// Builds the instruments.
    pub fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, description: &'static str| {
            meter
                .u64_counter(name)
                .with_description(description)
                .build()
        };
        Self {
            published: counter(
                "event.outbox.published",
                "Events acknowledged by a sink and settled.",
            ),
            retried: counter(
                "event.outbox.retried",
                "Charged failures that will be tried again.",
            ),
            discarded: counter("event.outbox.discarded", "Events set aside."),
            lease_lost: counter(
                "event.outbox.lease_lost",
                "Outcomes that came too late: the lease had another token.",
            ),
            enqueue_failed: counter(
                "event.outbox.enqueue_failed",
                "Events that could not be inserted after all attempts.",
            ),
            missed: counter(
                "event.outbox.missed",
                "Events that reading forward missed and the sweep found. Stays 0.",
            ),
            inversions: counter(
                "event.outbox.inversions",
                "Events that became visible after a later one of their key was published.",
            ),
            unrouted: counter(
                "event.outbox.unrouted",
                "Events read whose kind no route takes; they stay in the outbox.",
            ),
            duplicates: counter(
                "event.outbox.duplicates",
                "Acknowledgements that say: had it already.",
            ),
            restarts: counter("event.outbox.restarts", "Actors restarted after a crash."),
            oldest_ready_age: meter
                .f64_gauge("event.outbox.oldest.ready.age")
                .with_unit("s")
                .with_description("How long the oldest due event has been waiting.")
                .build(),
        }
    }

    /// Instruments that go nowhere.
    pub fn none() -> Self {
        Self::new(&NoopMeterProvider::new().meter("outboxd"))
    }

    /// Events acknowledged and settled.
    pub fn published(&self, database: &str, sink: &str, count: u64) {
        self.published.add(count, &feed(database, sink));
    }

    /// A charged failure.
    pub fn retried(&self, database: &str, sink: &str, count: u64) {
        self.retried.add(count, &feed(database, sink));
    }

    /// A discard.
    pub fn discarded(&self, database: &str, sink: &str, reason: DiscardReason) {
        self.discards(database, sink, reason, 1);
    }

    fn discards(&self, database: &str, sink: &str, reason: DiscardReason, count: u64) {
        let [database, sink] = feed(database, sink);
        self.discarded.add(
            count,
            &[database, sink, KeyValue::new("reason", reason.as_str())],
        );
    }

    /// Fenced outcomes.
    pub fn lease_lost(&self, database: &str, count: u64) {
        self.lease_lost.add(count, &[source(database)]);
    }

    /// Failed inserts.
    pub fn enqueue_failed(&self, database: &str) {
        self.enqueue_failed.add(1, &[source(database)]);
    }

    /// Rows the sweep found.
    pub fn missed(&self, database: &str, count: u64) {
        self.missed.add(count, &[source(database)]);
    }

    /// Events that no route takes.
    pub fn unrouted(&self, database: &str, count: u64) {
        self.unrouted.add(count, &[source(database)]);
    }

    /// Late commits behind a published event of the same key.
    pub fn inversions(&self, database: &str, count: u64) {
        self.inversions.add(count, &[source(database)]);
    }

    /// Acknowledgements marked as duplicates; `expected` when an earlier answer was missing.
    pub fn duplicate(&self, database: &str, sink: &str, expected: bool) {
        let [database, sink] = feed(database, sink);
        self.duplicates
            .add(1, &[database, sink, KeyValue::new("expected", expected)]);
    }

    /// A restarted actor.
    pub fn restart(&self, actor: &'static str) {
        self.restarts.add(1, &[KeyValue::new("actor", actor)]);
    }

    /// Sample of the backlog's age.
    pub fn oldest_ready_age(&self, database: &str, seconds: f64) {
        self.oldest_ready_age.record(seconds, &[source(database)]);
    }

    /// Makes every counter visible with value 0, so that a rate can be taken from the first event on.
    pub fn announce(&self, database: &str, sinks: &[&str]) {
        self.lease_lost(database, 0);
        self.missed(database, 0);
        self.inversions(database, 0);
        self.unrouted(database, 0);
        self.enqueue_failed.add(0, &[source(database)]);
        for sink in sinks {
            self.published(database, sink, 0);
            self.retried(database, sink, 0);
            for reason in DiscardReason::ALL {
                self.discards(database, sink, reason, 0);
            }
        }
    }
}

fn source(database: &str) -> KeyValue {
    KeyValue::new("database", database.to_owned())
}

fn feed(database: &str, sink: &str) -> [KeyValue; 2] {
    [source(database), KeyValue::new("sink", sink.to_owned())]
}
