//! What waits: deep backlogs, keys that are stuck, events for later, an old snapshot, a sink that takes nothing. None
//! of them may cost those events much that can go.

use std::sync::Arc;

use outboxd::relay;
use outboxd::relay::SinkOptions;
use outboxd::sink::PublishError;
use outboxd::sink::memory::{Answer, Memory};
use outboxd::source::PublishedKeep;

use crate::audit::{self, Arrived};
use crate::cpu::Meter;
use crate::drains::Drain;
use crate::it::support::eventually;
use crate::measurement::{
    Bound, Column, Figures, Goal, Group, Line, OTHERS, POSTGRES, RATE, RELAY, Value, What, median,
};
use crate::outbox::{Fill, Keys, Outbox};
use crate::poison;
use crate::process::{LONG, Process};
use crate::sitting::Sitting;
use crate::stage::with_sinks;
use crate::stored;

const LONGEST_READ: What = "longest forward read, ms";
const BLOCKS: What = "database blocks an event";
const PASSING: What = "s to pass what waits";

const SHALLOW: &str = "backlog of 10,000";
const DEEP: &str = "backlog of 1,000,000";
const DEEPEST: &str = "backlog of 10,000,000";
const FREE: &str = "5,000 events, nothing waits";
const POISON: &str = "5,000 events beside a poison key";
const DELAYED: &str = "5,000 events beside delayed ones";
const FRESH: &str = "long run";
const SNAPSHOT: &str = "long run beside an old snapshot";
const TWO: &str = "two sinks";

/// The first so many of a backlog are measured.
const FIRST: u32 = 20_000;
const BURST: u32 = 5_000;
const BURSTS: u32 = 5;

pub fn group(large: bool) -> Group {
    let mut lines = vec![Line::new(SHALLOW, &[], |sitting| {
        Box::pin(backlog(sitting, sitting.arguments.at_most(10_000)))
    })];
    if large {
        for (name, rows) in [(DEEP, 1_000_000), (DEEPEST, 10_000_000)] {
            let line = Line::new(name, &[SHALLOW], move |sitting| {
                Box::pin(backlog(sitting, rows))
            });
            lines.push(line.once());
        }
    } else {
        lines.push(Line::new("backlog of 200,000", &[SHALLOW], |sitting| {
            Box::pin(backlog(sitting, sitting.arguments.at_most(200_000)))
        }));
    }
    // Rows that wait: a million, or a tenth of it.
    let waiting = move |sitting: &Sitting| {
        if large {
            1_000_000
        } else {
            sitting.arguments.at_most(100_000)
        }
    };
    lines.extend([
        Line::new(FREE, &[], |sitting| {
            Box::pin(flow(sitting, Waiting::Nothing))
        }),
        Line::new(POISON, &[FREE], move |sitting| {
            Box::pin(flow(sitting, Waiting::Poison(waiting(sitting))))
        }),
        Line::new(DELAYED, &[FREE], move |sitting| {
            Box::pin(flow(sitting, Waiting::Delayed(waiting(sitting))))
        }),
        Line::new(FRESH, &[], move |sitting| {
            Box::pin(long_run(sitting, waiting(sitting), false))
        }),
        Line::new(SNAPSHOT, &[FRESH], move |sitting| {
            Box::pin(long_run(sitting, waiting(sitting), true))
        }),
        Line::new(TWO, &[], |sitting| Box::pin(beside(sitting, false))),
        Line::new("two sinks beside one that refuses", &[TWO], |sitting| {
            Box::pin(beside(sitting, true))
        }),
    ]);
    Group {
        name: "waits",
        lines,
        columns: vec![
            Column::of(RATE, 0),
            Column::of_base("of the rate without", RATE),
            Column::of(LONGEST_READ, 1),
            Column::of(PASSING, 1),
            Column::of(RELAY, 1),
            Column::of(POSTGRES, 1),
            Column::of(BLOCKS, 1),
            Column::of(OTHERS, 0),
        ],
        goals: goals(),
    }
}

fn goals() -> Vec<Goal> {
    let of_base = |line, bound| Goal {
        line,
        words: "rate, of that without",
        value: Value::OfBase(RATE),
        bound: Bound::AtLeast(bound),
    };
    vec![
        of_base(DEEPEST, 0.9),
        Goal {
            line: DEEPEST,
            words: "longest forward read, ms",
            value: Value::Plain(LONGEST_READ),
            bound: Bound::AtMost(50.0),
        },
        of_base(POISON, 0.95),
        of_base(DELAYED, 0.95),
        of_base(SNAPSHOT, 0.9),
    ]
}

/// How fast the first events of a backlog are stored, by the stream's own times, and how long a read takes. Rows of
/// 200 bytes, so that ten millions of them fit anywhere.
async fn backlog(sitting: &Sitting, rows: u32) -> Figures {
    let stage = &sitting.stage;
    let first = rows.min(FIRST);
    let fill = Fill::new(rows, Keys::Over(10_000)).bytes(200);
    let outbox = Outbox::filled(stage, PublishedKeep::Full, fill).await;
    let stream = stage.stream().await;
    stage.count_statements(true).await;
    let mut relay = Process::ready(&outbox.relayed(stage)).await;
    let meter = Meter::start(stage.watched(Some(relay.id())));
    relay.ask("start").await;
    eventually(LONG, "the first events have arrived", || async {
        let messages = stream.get_info().await.unwrap().state.messages;
        (messages >= u64::from(first))
            .then_some(())
            .ok_or(format!("{messages} of {first}"))
    })
    .await;
    let cost = meter.stop();
    if rows <= FIRST {
        relay.ask("drained").await;
    }
    relay.stop().await;
    let read = stage
        .longest("from outbox.event as o")
        .await
        .max(stage.longest("from \"outbox\".event as o").await);
    stage.count_statements(sitting.arguments.statements).await;
    let arrived = stored::arrived(stage).await;
    let relayed = arrived.len() as u64;
    let mut findings = audit::findings(&arrived, relayed);
    findings.extend(outbox.findings(u64::from(rows) - relayed, relayed).await);
    sitting.audited(relayed, findings);
    Figures::default()
        .with(RATE, rate(&arrived[..first as usize], arrived[0].stored))
        .with(LONGEST_READ, read)
        .with(OTHERS, cost.others * 100.0)
        .remark(format!(
            "the first {first} of {rows} rows of 200 B, by the stream's times"
        ))
}

/// Events a second up to the last of these.
fn rate(arrived: &[Arrived], from: i64) -> f64 {
    let last = arrived.iter().map(|message| message.stored).max().unwrap();
    arrived.len() as f64 * 1e9 / (last - from) as f64
}

#[derive(Debug, Clone, Copy)]
enum Waiting {
    Nothing,
    /// Rows behind an event that its sink does not like.
    Poison(u32),
    /// Rows that are due tomorrow.
    Delayed(u32),
}

/// What waits is there and known; then come bursts of events of other keys, each in one transaction. The rate is the
/// median of the bursts', from the commit on.
async fn flow(sitting: &Sitting, waiting: Waiting) -> Figures {
    let stage = &sitting.stage;
    let burst = sitting.arguments.at_most(BURST);
    let outbox = Outbox::new(stage, PublishedKeep::Full).await;
    let rows = waiting.insert(&outbox).await;
    // It comes behind all of them, so when it arrives they were read.
    outbox.fill(Fill::new(1, Keys::None)).await;
    outbox.rest().await;
    let stream = stage.stream().await;
    let mut relayed = outbox.relayed(stage);
    relayed.poison = true;
    let relay = Process::start(&relayed).await;
    let arrive = async |events: u64| {
        eventually(LONG, "events of other keys arrive", || async {
            let messages = stream.get_info().await.unwrap().state.messages;
            (messages >= events)
                .then_some(())
                .ok_or(format!("{messages} of {events}"))
        })
        .await;
    };
    let begun = std::time::Instant::now();
    arrive(1).await;
    let passing = begun.elapsed().as_secs_f64();
    stage.count_statements(true).await;
    let meter = Meter::start(stage.watched(Some(relay.id())));
    let mut commits = Vec::new();
    for n in 1..=BURSTS {
        outbox.fill(Fill::new(burst, Keys::Over(10_000))).await;
        commits.push(now());
        arrive(1 + u64::from(burst * n)).await;
    }
    let cost = meter.stop();
    let all = u64::from(burst * BURSTS);
    let blocks = stage.blocks().await / all as f64;
    stage.count_statements(sitting.arguments.statements).await;
    relay.stop().await;
    let arrived = stored::arrived(stage).await;
    let mut findings = audit::findings(&arrived, all + 1);
    findings.extend(outbox.findings(rows.into(), all + 1).await);
    sitting.audited(all + 1, findings);
    let bursts = arrived[1..].chunks(burst as usize).zip(&commits);
    let rate = median(bursts.map(|(arrived, commit)| rate(arrived, *commit)));
    cost.figures(burst * BURSTS)
        .with(BLOCKS, blocks)
        .with(PASSING, passing)
        .replacing(RATE, rate.unwrap())
        .remark(format!(
            "{rows} rows wait; {BURSTS} bursts, the work of inserting them included"
        ))
}

impl Waiting {
    /// Inserts what waits, and says how many rows that is.
    async fn insert(self, outbox: &Outbox) -> u32 {
        let (rows, key, due) = match self {
            Self::Nothing => return 0,
            Self::Poison(rows) => (rows, format!("'{}'", poison::KEY), "now()"),
            Self::Delayed(rows) => (
                rows,
                "'d' || n % 10000".to_owned(),
                "now() + interval '1 day'",
            ),
        };
        let sql = format!(
            "insert into outbox.event (kind, ordering_key, payload, available_at)
               select 'order.changed', {key}, json_build_object('x', repeat('y', 1000)), {due}
               from generate_series(1, {rows}) n"
        );
        outbox.database.execute(&sql).await;
        rows
    }
}

fn now() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

/// A backlog of so many, with or without an old snapshot open.
async fn long_run(sitting: &Sitting, events: u32, snapshot: bool) -> Figures {
    let mut drain = Drain::new(Fill::new(events, Keys::Over(10_000)));
    if snapshot {
        drain = drain.snapshot();
    }
    drain.run(sitting).await.remark(format!("{events} events"))
}

/// To two sinks in memory that take everything at once, beside a third that refuses everything; until both have all.
/// The relay runs in this process.
async fn beside(sitting: &Sitting, third: bool) -> Figures {
    let stage = &sitting.stage;
    let events = sitting.arguments.at_most(50_000);
    let outbox = Outbox::filled(
        stage,
        PublishedKeep::Full,
        Fill::new(events, Keys::Over(500)),
    )
    .await;
    let live = [Memory::new(), Memory::new()];
    let refusing = Memory::new();
    refusing.on(|_| Some(Answer::Fail(PublishError::unavailable("full"))));
    let mut sinks = vec![("first", live[0].clone()), ("second", live[1].clone())];
    if third {
        sinks.push(("third", refusing));
    }
    let sinks = sinks
        .into_iter()
        .map(|(name, sink)| SinkOptions::new(name, Arc::new(sink)));
    let options = with_sinks(outbox.source(), sinks.collect(), PublishedKeep::Full);
    let meter = Meter::start(stage.watched(None));
    let relay = relay::start(options).await.unwrap();
    for sink in &live {
        sink.wait_for(events as usize, LONG).await.unwrap();
    }
    let cost = meter.stop();
    relay.shutdown().await.unwrap();
    let wrong = live.iter().filter_map(|sink| {
        let received = sink.received().len();
        (received != events as usize).then(|| format!("{received} events of {events} in a sink"))
    });
    sitting.audited(u64::from(events) * 2, wrong.collect());
    cost.figures(events).remark(format!("{events} events"))
}
