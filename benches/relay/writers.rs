//! What writers pay for the relay being there: commits a second of clients that each insert one event a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outboxd::source::PublishedKeep;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::audit;
use crate::cpu::Meter;
use crate::measurement::{Bound, Column, Figures, Goal, Group, Line, OTHERS, Value, What};
use crate::outbox::Outbox;
use crate::process::Process;
use crate::sitting::Sitting;
use crate::stored;

const COMMITS: What = "commits/s";

const NAMES: [[&str; 4]; 2] = [
    [
        "8 clients, no trigger",
        "8 clients, trigger, no relay",
        "8 clients, trigger, relay",
        "8 clients, NOTIFY on every commit",
    ],
    [
        "64 clients, no trigger",
        "64 clients, trigger, no relay",
        "64 clients, trigger, relay",
        "64 clients, NOTIFY on every commit",
    ],
];

/// What stands beside the table.
#[derive(Debug, Clone, Copy)]
enum Beside {
    Nothing,
    Trigger,
    Relay,
    Notify,
}

const NOTIFY: &str = "
create function outbox.always() returns trigger language plpgsql as
  $$ begin perform pg_notify('always', ''); return null; end $$;
create trigger always after insert on outbox.event for each statement execute function outbox.always()";

pub fn group() -> Group {
    let mut lines = Vec::new();
    for (names, clients) in NAMES.iter().zip([8, 64]) {
        let besides = [
            Beside::Nothing,
            Beside::Trigger,
            Beside::Relay,
            Beside::Notify,
        ];
        for (name, beside) in names.iter().zip(besides) {
            let against: &[&str] = match beside {
                Beside::Nothing => &[],
                _ => &names[..1],
            };
            lines.push(Line::new(*name, against, move |sitting| {
                Box::pin(commits(sitting, clients, beside))
            }));
        }
    }
    let goals = NAMES.iter().map(|names| Goal {
        line: names[1],
        words: "commits, of those without",
        value: Value::OfBase(COMMITS),
        bound: Bound::AtLeast(0.95),
    });
    Group {
        name: "writers",
        lines,
        columns: vec![
            Column::of(COMMITS, 0),
            Column::of_base("of those without", COMMITS),
            Column::of(OTHERS, 0),
        ],
        goals: goals.collect(),
    }
}

async fn commits(sitting: &Sitting, clients: usize, beside: Beside) -> Figures {
    let stage = &sitting.stage;
    let outbox = Outbox::new(stage, PublishedKeep::Full).await;
    if !matches!(beside, Beside::Trigger | Beside::Relay) {
        outbox
            .database
            .execute("drop trigger wake on outbox.event")
            .await;
    }
    if matches!(beside, Beside::Notify) {
        outbox.database.execute(NOTIFY).await;
    }
    stage.stream().await;
    let mut relay = None;
    if matches!(beside, Beside::Relay) {
        let mut process = Process::start(&outbox.relayed(stage)).await;
        process.ask("drained").await;
        relay = Some(process);
    }
    let committed = Arc::new(AtomicU64::new(0));
    let ready = Arc::new(Barrier::new(clients + 1));
    let mut writers = JoinSet::new();
    for client in 0..clients {
        let connection = outbox.database.writer().await;
        let (ready, committed) = (Arc::clone(&ready), Arc::clone(&committed));
        let span = sitting.arguments.span;
        writers.spawn(async move {
            ready.wait().await;
            let end = Instant::now() + span;
            write(connection, client, end, &committed).await;
        });
    }
    ready.wait().await;
    let meter = Meter::start(stage.watched(relay.as_ref().map(Process::id)));
    writers.join_all().await;
    let cost = meter.stop();
    let committed = committed.load(Ordering::Relaxed);
    let mut findings = Vec::new();
    let mut relayed = 0;
    if let Some(mut relay) = relay {
        relay.ask("drained").await;
        relay.stop().await;
        relayed = committed;
        findings = audit::findings(&stored::arrived(stage).await, committed);
    }
    findings.extend(outbox.findings(committed - relayed, relayed).await);
    sitting.audited(committed, findings);
    Figures::default()
        .with(COMMITS, committed as f64 / cost.wall.as_secs_f64())
        .with(OTHERS, cost.others * 100.0)
}

/// One client, with a key of its own.
async fn write(
    mut connection: sqlx::PgConnection,
    client: usize,
    end: Instant,
    committed: &AtomicU64,
) {
    while Instant::now() < end {
        sqlx::query(
            "insert into outbox.event (kind, ordering_key, payload)
             values ('order.changed', $1, json_build_object('x', repeat('y', 1000)))",
        )
        .bind(format!("c{client}"))
        .execute(&mut connection)
        .await
        .unwrap();
        committed.fetch_add(1, Ordering::Relaxed);
    }
}
