//! From commit to stream: a steady writer, and the stream's own timestamps on the same machine; at small rates, at
//! shares of the rate at which a backlog drains, and for the first event after silence.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outboxd::source::PublishedKeep;
use sqlx::Connection;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::audit::{self, Arrived};
use crate::ceilings::{PACED, ROUND_TRIP};
use crate::cpu::Meter;
use crate::drains::USUAL;
use crate::it::support::eventually;
use crate::measurement::{
    Bound, Column, Figures, Goal, Group, Line, OTHERS, P50, P99, P999, RATE, Value, What,
    percentile,
};
use crate::outbox::Outbox;
use crate::process::{From, LONG, Process};
use crate::sitting::Sitting;
use crate::stored;

const SENT_P50: What = "with the commit: p50, ms";
const SENT_P99: What = "with the commit: p99, ms";
const RELAY_SHARE: What = "relay, % of a core";
const POSTGRES_SHARE: What = "PostgreSQL, % of a core";

const TRICKLE: &str = "200 events/s";
const HALF: &str = "50 % load";
const FIRST: &str = "first after silence";

/// Transactions a second that one writer manages beside everything else.
const TRANSACTIONS: u32 = 200;
/// First events after silence, in one round.
const FIRSTS: usize = 5;

pub fn group() -> Group {
    let lines = vec![
        Line::new("20 events/s", &[ROUND_TRIP, PACED], |sitting| {
            Box::pin(at_rate(sitting, 20, true))
        }),
        Line::new(TRICKLE, &[ROUND_TRIP, PACED], move |sitting| {
            Box::pin(at_rate(sitting, 200, true))
        }),
        Line::new("200 events/s, polling", &[ROUND_TRIP, PACED], |sitting| {
            Box::pin(at_rate(sitting, 200, false))
        }),
        Line::new(HALF, &[ROUND_TRIP, PACED, USUAL], |sitting| {
            Box::pin(at_share(sitting, 0.5))
        }),
        Line::new("80 % load", &[ROUND_TRIP, PACED, USUAL], |sitting| {
            Box::pin(at_share(sitting, 0.8))
        }),
        Line::new(FIRST, &[ROUND_TRIP, PACED], |sitting| {
            Box::pin(first(sitting, true))
        }),
        Line::new(
            "first after silence, polling",
            &[ROUND_TRIP, PACED],
            |sitting| Box::pin(first(sitting, false)),
        ),
    ];
    Group {
        name: "latency",
        lines,
        columns: vec![
            Column::of(P50, 2),
            Column::of(P99, 2),
            Column::of(P999, 1),
            Column::ratio("p50, publish round trips", P50, ROUND_TRIP, P50),
            Column::ratio("p99, publish round trips", P99, ROUND_TRIP, P50),
            Column::ratio("p50, at 200 a second", P50, PACED, P50),
            Column::ratio("p99, at 200 a second", P99, PACED, P50),
            Column::of(SENT_P50, 2),
            Column::of(SENT_P99, 2),
            Column::of(RELAY_SHARE, 1),
            Column::of(POSTGRES_SHARE, 1),
            Column::of(OTHERS, 0),
        ],
        goals: goals(),
    }
}

fn goals() -> Vec<Goal> {
    let goal = |line, words, what, bound| Goal {
        line,
        words,
        value: Value::Ratio(what, ROUND_TRIP, P50),
        bound: Bound::AtMost(bound),
    };
    vec![
        goal(TRICKLE, "p50, publish round trips", P50, 4.0),
        goal(TRICKLE, "p99, publish round trips", P99, 16.0),
        goal(FIRST, "p99, publish round trips", P99, 60.0),
        goal(HALF, "p99, publish round trips", P99, 160.0),
    ]
}

/// At a share of the rate of the drain that was just measured.
async fn at_share(sitting: &Sitting, share: f64) -> Figures {
    let drained = sitting.results.last(USUAL, RATE).unwrap();
    at_rate(sitting, (drained * share) as u32, true).await
}

/// An empty outbox, and a relay that waits.
async fn start(sitting: &Sitting, listen: bool) -> (Outbox, Process) {
    let stage = &sitting.stage;
    let outbox = Outbox::new(stage, PublishedKeep::Full).await;
    stage.stream().await;
    let mut relayed = outbox.relayed(stage);
    if let From::Postgres { listen: own, .. } = &mut relayed.from {
        *own = listen;
    }
    let mut relay = Process::start(&relayed).await;
    relay.ask("drained").await;
    (outbox, relay)
}

/// `rate` events a second over 10,000 keys, as many to a transaction as one writer needs for it.
async fn at_rate(sitting: &Sitting, rate: u32, listen: bool) -> Figures {
    let stage = &sitting.stage;
    let batch = rate.div_ceil(TRANSACTIONS);
    let (outbox, mut relay) = start(sitting, listen).await;
    // The first second settles into the mode that fits the rate; it is not measured.
    let warm = write(
        &outbox,
        rate,
        batch,
        Duration::from_millis(1_500).min(sitting.arguments.span),
        "warm",
    )
    .await;
    let meter = Meter::start(stage.watched(Some(relay.id())));
    let commits = write(&outbox, rate, batch, sitting.arguments.span, "e").await;
    let cost = meter.stop();
    let written = commits.len() as u64 * u64::from(batch);
    let all = warm.len() as u64 * u64::from(batch) + written;
    arrived(sitting, all).await;
    // The stream has it before it is settled.
    relay.ask("drained").await;
    relay.stop().await;
    let arrived = stored::arrived(stage).await;
    let mut findings = audit::findings(&arrived, all);
    findings.extend(outbox.findings(0, all).await);
    sitting.audited(all, findings);
    let reached = written as f64 / cost.wall.as_secs_f64();
    let words = format!("{batch} events a transaction; {reached:.0} events/s written");
    of(&commits, &arrived)
        .with(RELAY_SHARE, cost.share(cost.relay))
        .with(POSTGRES_SHARE, cost.share(cost.postgres))
        .with(OTHERS, cost.others * 100.0)
        .remark(words)
}

/// Single events, each after silence.
async fn first(sitting: &Sitting, listen: bool) -> Figures {
    let (outbox, mut relay) = start(sitting, listen).await;
    let mut commits = HashMap::new();
    for n in 0..FIRSTS {
        // Silence itself is the subject.
        tokio::time::sleep(sitting.arguments.silence).await;
        let name = format!("s{n}");
        commits.extend(write(&outbox, 1, 1, Duration::ZERO, &name).await);
        arrived(sitting, n as u64 + 1).await;
    }
    relay.ask("drained").await;
    relay.stop().await;
    let arrived = stored::arrived(&sitting.stage).await;
    let mut findings = audit::findings(&arrived, FIRSTS as u64);
    findings.extend(outbox.findings(0, FIRSTS as u64).await);
    sitting.audited(FIRSTS as u64, findings);
    let silence = sitting.arguments.silence.as_secs_f64();
    of(&commits, &arrived).remark(format!(
        "{FIRSTS} events, each after {silence} s; p99 is the worst"
    ))
}

/// Until so many are in the stream.
async fn arrived(sitting: &Sitting, all: u64) {
    let stream = sitting
        .stage
        .nats
        .jetstream()
        .await
        .get_stream("EVENTS")
        .await
        .unwrap();
    eventually(LONG, "all events are in the stream", || async {
        let messages = stream.get_info().await.unwrap().state.messages;
        (messages >= all)
            .then_some(())
            .ok_or(format!("{messages} of {all}"))
    })
    .await;
}

/// When a transaction was about to be committed, and when its writer heard that it was.
#[derive(Debug, Clone, Copy)]
struct Commit {
    sent: i64,
    known: i64,
}

/// From the commits to the stream.
fn of(commits: &HashMap<String, Commit>, arrived: &[Arrived]) -> Figures {
    let mut from_sent = Vec::new();
    let mut from_known = Vec::new();
    for message in arrived {
        if let Some(commit) = commits.get(&message.request_id) {
            from_sent.push((message.stored - commit.sent) as f64 / 1e6);
            from_known.push((message.stored - commit.known) as f64 / 1e6);
        }
    }
    from_sent.sort_by(f64::total_cmp);
    from_known.sort_by(f64::total_cmp);
    Figures::default()
        .with(P50, percentile(&from_known, 0.5))
        .with(P99, percentile(&from_known, 0.99))
        .with(P999, percentile(&from_known, 0.999))
        .with(SENT_P50, percentile(&from_sent, 0.5))
        .with(SENT_P99, percentile(&from_sent, 0.99))
}

/// Nanoseconds since 1970 by the clock that the broker on this machine reads too.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

/// Writes for this long, one transaction at least; gives the commits by the request id of their events.
async fn write(
    outbox: &Outbox,
    rate: u32,
    batch: u32,
    span: Duration,
    name: &str,
) -> HashMap<String, Commit> {
    let mut connection = outbox.database.writer().await;
    let mut ticks = interval(Duration::from_secs(1) * batch / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let end = Instant::now() + span;
    let mut commits = HashMap::new();
    let mut n = 0_u32;
    loop {
        ticks.tick().await;
        n += 1;
        let request_id = format!("{name}-{n}");
        let mut transaction = connection.begin().await.unwrap();
        sqlx::query(
            "insert into outbox.event (kind, ordering_key, payload, headers)
             select 'order.changed', 'k' || (hashint4($1 + m) & 2147483647) % 10000,
                    json_build_object('x', repeat('y', 1000)), jsonb_build_object('request_id', $2::text)
             from generate_series(1, $3) m",
        )
        .bind((n * batch) as i32)
        .bind(&request_id)
        .bind(batch as i32)
        .execute(&mut *transaction)
        .await
        .unwrap();
        let sent = now();
        transaction.commit().await.unwrap();
        let known = now();
        commits.insert(request_id, Commit { sent, known });
        if Instant::now() >= end {
            return commits;
        }
    }
}
