//! A backlog in PostgreSQL delivered to JetStream, from the start of the relay until everything is published and
//! settled: over the shapes of keys, what is kept, sizes, and the modes of the sink.

use outboxd::sink::nats::Mode;
use outboxd::source::PublishedKeep;

use crate::audit;
use crate::ceilings::{BROKER, DATABASE_FULL};
use crate::cpu::Meter;
use crate::floor::FLOOR;
use crate::measurement::{
    Bound, Column, Figures, Goal, Group, Line, NATS, OTHERS, PEAK, POSTGRES, RATE, RELAY, Value,
    WAL,
};
use crate::outbox::{Fill, Keys, Outbox};
use crate::process::{Process, To};
use crate::sitting::Sitting;
use crate::stored;

/// What everything else is compared with: 10,000 keys, the history kept, lanes.
pub const USUAL: &str = "10,000 keys";
pub const MANY: &str = "100,000 keys";
pub const NOTHING_KEPT: &str = "10,000 keys, nothing kept";
const HOT: &str = "1 key";
const SINGLE: &str = "single events, 10,000 keys";

/// A backlog and how it is relayed.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    pub fill: Fill,
    pub keep: PublishedKeep,
    pub mode: Mode,
    /// An old snapshot is open all the time.
    pub snapshot: bool,
}

impl Drain {
    pub fn new(fill: Fill) -> Self {
        Self {
            fill,
            keep: PublishedKeep::Full,
            mode: Mode::Auto,
            snapshot: false,
        }
    }

    pub fn snapshot(mut self) -> Self {
        self.snapshot = true;
        self
    }

    pub fn keep(mut self, keep: PublishedKeep) -> Self {
        self.keep = keep;
        self
    }

    fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Delivers it and looks at what arrived.
    pub async fn run(self, sitting: &Sitting) -> Figures {
        let stage = &sitting.stage;
        let events = self.fill.events;
        let outbox = Outbox::filled(stage, self.keep, self.fill).await;
        let snapshot = if self.snapshot {
            Some(old_snapshot(&outbox).await)
        } else {
            None
        };
        stage.stream().await;
        let mut relayed = outbox.relayed(stage);
        if let To::Nats { mode, .. } = &mut relayed.to {
            *mode = self.mode;
        }
        let mut relay = Process::ready(&relayed).await;
        let wal = stage.wal().await;
        let meter = Meter::start(stage.watched(Some(relay.id())));
        relay.ask("start").await;
        relay.ask("drained").await;
        let cost = meter.stop();
        let wal = (stage.wal().await - wal) / f64::from(events);
        let (peak, _) = relay.memory();
        relay.stop().await;
        drop(snapshot);
        let mut findings = audit::findings(&stored::arrived(stage).await, events.into());
        findings.extend(outbox.findings(0, events.into()).await);
        sitting.audited(events.into(), findings);
        cost.figures(events).with(WAL, wal).with(PEAK, peak)
    }
}

/// A transaction that sees the outbox as it is now until it is dropped.
async fn old_snapshot(outbox: &Outbox) -> sqlx::PgConnection {
    let mut connection = outbox.database.connect().await;
    sqlx::raw_sql("begin isolation level repeatable read; select seq from outbox.event limit 1")
        .execute(&mut connection)
        .await
        .unwrap();
    connection
}

/// Of as many events as the program was asked for.
fn line(name: &str, against: &[&str], drain: impl Fn(u32) -> Drain + Copy + 'static) -> Line {
    Line::new(name, against, move |sitting| {
        Box::pin(async move {
            let events = sitting.arguments.events;
            drain(events).run(sitting).await
        })
    })
}

fn columns() -> Vec<Column> {
    vec![
        Column::of(RATE, 0),
        Column::ratio("of the broker alone", RATE, BROKER, RATE),
        Column::ratio("times the baseline", RATE, FLOOR, RATE),
        Column::ratio("of 10,000 keys", RATE, USUAL, RATE),
        Column::of(RELAY, 1),
        Column::of(POSTGRES, 1),
        Column::of(NATS, 1),
        Column::of(WAL, 0),
        Column::of(PEAK, 0),
        Column::of(OTHERS, 0),
    ]
}

pub fn group() -> Group {
    let against = &[USUAL, BROKER, FLOOR];
    let usual = |events| Drain::new(Fill::new(events, Keys::Over(10_000)));
    let lines = vec![
        line(USUAL, &[BROKER, FLOOR, DATABASE_FULL], usual),
        line(MANY, against, |events| {
            Drain::new(Fill::new(events, Keys::Over(100_000)))
        }),
        line("100 keys", against, |events| {
            Drain::new(Fill::new(events, Keys::Over(100)))
        }),
        line(HOT, against, |events| {
            Drain::new(Fill::new(events, Keys::One))
        }),
        line("no keys", against, |events| {
            Drain::new(Fill::new(events, Keys::None))
        }),
        line("Zipf over 10,000 keys", against, |events| {
            Drain::new(Fill::new(events, Keys::Zipf(10_000)))
        }),
        line(NOTHING_KEPT, against, move |events| {
            usual(events).keep(PublishedKeep::None)
        }),
        line("10,000 keys, receipts kept", against, move |events| {
            usual(events).keep(PublishedKeep::Receipt)
        }),
        line("10,000 keys, 200 B", against, |events| {
            Drain::new(Fill::new(events, Keys::Over(10_000)).bytes(200))
        }),
        line("10,000 keys, 16 KiB", against, |events| {
            Drain::new(Fill::new(events.div_ceil(10), Keys::Over(10_000)).bytes(16 * 1_024))
        }),
    ];
    Group {
        name: "drain",
        lines,
        columns: columns(),
        goals: goals(),
    }
}

fn goals() -> Vec<Goal> {
    let goal = |line, words, value, bound| Goal {
        line,
        words,
        value,
        bound,
    };
    let of_usual = Value::Ratio(RATE, USUAL, RATE);
    vec![
        goal(
            USUAL,
            "rate, of the broker alone (0.7 wanted)",
            Value::Ratio(RATE, BROKER, RATE),
            Bound::AtLeast(0.55),
        ),
        goal(
            USUAL,
            "rate, times the baseline's",
            Value::Ratio(RATE, FLOOR, RATE),
            Bound::AtLeast(15.0),
        ),
        goal(
            HOT,
            "rate, of that of 10,000 keys",
            of_usual,
            Bound::AtLeast(0.9),
        ),
        goal(
            MANY,
            "rate, of that of 10,000 keys",
            of_usual,
            Bound::AtLeast(0.75),
        ),
        goal(
            MANY,
            "peak memory, MB",
            Value::Plain(PEAK),
            Bound::AtMost(200.0),
        ),
    ]
}

/// The ways in which the sink keeps order.
pub fn modes() -> Group {
    let against = &[USUAL, BROKER, FLOOR];
    let mut lines = Vec::new();
    for (mode, words) in [
        (Mode::Lane, "lanes"),
        (Mode::Atomic, "atomic batches"),
        (Mode::Single, "single events"),
    ] {
        for (keys, of) in [(Keys::Over(10_000), "10,000 keys"), (Keys::One, "1 key")] {
            lines.push(line(&format!("{words}, {of}"), against, move |events| {
                Drain::new(Fill::new(events, keys)).mode(mode)
            }));
        }
    }
    Group {
        name: "modes",
        lines,
        columns: columns(),
        goals: vec![Goal {
            line: SINGLE,
            words: "rate, of the broker alone",
            value: Value::Ratio(RATE, BROKER, RATE),
            bound: Bound::AtLeast(0.35),
        }],
    }
}
