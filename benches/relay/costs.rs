//! What the relay costs: processor time and written log beside the baseline's, memory, and what it uses while nothing
//! happens.

use std::time::Duration;

use outboxd::source::PublishedKeep;

use crate::cpu::Meter;
use crate::drains::{Drain, MANY, NOTHING_KEPT, USUAL};
use crate::floor::FLOOR;
use crate::measurement::{
    Bound, Column, Figures, Goal, Group, Line, NATS, OTHERS, PEAK, POSTGRES, RATE, RELAY, Value,
    WAL, What,
};
use crate::outbox::{Fill, Keys, Outbox};
use crate::process::Process;
use crate::sitting::Sitting;

const MEMORY: What = "memory, MB";
const RELAY_SHARE: What = "relay, % of a core";
const POSTGRES_SHARE: What = "PostgreSQL, % of a core";
const CALLS: What = "calls to the database a minute";

const SUCCESSIVE: &str = "100,000 keys, one after the other";
const IDLE: &str = "idle";

pub fn group() -> Group {
    let lines = vec![
        Line::new(SUCCESSIVE, &[MANY, USUAL, NOTHING_KEPT, FLOOR], |sitting| {
            Box::pin(successive(sitting))
        }),
        Line::new(IDLE, &[], |sitting| Box::pin(idle(sitting))),
    ];
    Group {
        name: "cost",
        lines,
        columns: vec![
            Column::of(RATE, 0),
            Column::of(PEAK, 0),
            Column::of(RELAY, 1),
            Column::of(POSTGRES, 1),
            Column::of(NATS, 1),
            Column::of(WAL, 0),
            Column::of(MEMORY, 0),
            Column::of(RELAY_SHARE, 2),
            Column::of(POSTGRES_SHARE, 2),
            Column::of(CALLS, 0),
            Column::of(OTHERS, 0),
        ],
        goals: goals(),
    }
}

fn goals() -> Vec<Goal> {
    let goal = |line, words, value, bound| Goal {
        line,
        words,
        value,
        bound: Bound::AtMost(bound),
    };
    let of_floor = |what| Value::Ratio(what, FLOOR, what);
    vec![
        goal(
            USUAL,
            "processor time of the relay, of the baseline's",
            of_floor(RELAY),
            0.2,
        ),
        goal(
            USUAL,
            "processor time of PostgreSQL, of the baseline's",
            of_floor(POSTGRES),
            0.2,
        ),
        goal(USUAL, "WAL, of the baseline's", of_floor(WAL), 1.0),
        goal(NOTHING_KEPT, "WAL, of the baseline's", of_floor(WAL), 0.7),
        goal(USUAL, "peak memory, MB", Value::Plain(PEAK), 60.0),
        goal(MANY, "peak memory, MB", Value::Plain(PEAK), 200.0),
        goal(SUCCESSIVE, "peak memory, MB", Value::Plain(PEAK), 200.0),
        goal(IDLE, "relay, % of a core", Value::Plain(RELAY_SHARE), 0.5),
        goal(IDLE, "memory, MB", Value::Plain(MEMORY), 30.0),
    ]
}

/// Keys that come and go.
async fn successive(sitting: &Sitting) -> Figures {
    let events = sitting.arguments.events;
    let fill = Fill::new(events, Keys::Successive(events.min(100_000)));
    Drain::new(fill).run(sitting).await
}

/// A relay with nothing to do, once it has come to rest.
async fn idle(sitting: &Sitting) -> Figures {
    let stage = &sitting.stage;
    let outbox = Outbox::new(stage, PublishedKeep::Full).await;
    stage.stream().await;
    let mut relayed = outbox.relayed(stage);
    relayed.count = true;
    let mut relay = Process::start(&relayed).await;
    relay.ask("drained").await;
    // Until it listens, and past the first rounds of housekeeping. Idleness itself is the subject.
    tokio::time::sleep(sitting.arguments.silence.min(Duration::from_secs(3))).await;
    let calls = async |relay: &mut Process| relay.ask("calls").await.parse::<f64>().unwrap();
    let before = calls(&mut relay).await;
    let meter = Meter::start(stage.watched(Some(relay.id())));
    tokio::time::sleep(sitting.arguments.span).await;
    let cost = meter.stop();
    let calls = calls(&mut relay).await - before;
    let (_, memory) = relay.memory();
    relay.stop().await;
    Figures::default()
        .with(MEMORY, memory)
        .with(RELAY_SHARE, cost.share(cost.relay))
        .with(POSTGRES_SHARE, cost.share(cost.postgres))
        .with(CALLS, calls * 60.0 / cost.wall.as_secs_f64())
        .with(OTHERS, cost.others * 100.0)
}
