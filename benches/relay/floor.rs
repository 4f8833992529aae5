//! The row-lease baseline: what the loop of the reference relay does, against a table of its own in the same
//! PostgreSQL. It claims the heads of 16 keys with a lease on their rows, publishes them side by side, waits for each
//! acknowledgement, and writes each outcome with a statement of its own that the lease fences.

use async_nats::jetstream::Context;
use futures_util::future::join_all;
use sqlx::postgres::PgPoolOptions;
use sqlx::types::Json;
use sqlx::{PgPool, Row};
use uuid::Uuid;

use crate::audit;
use crate::ceilings::headers;
use crate::cpu::Meter;
use crate::it::support::postgres::Database;
use crate::it::support::roles::Role;
use crate::measurement::{Column, Figures, Group, Line, NATS, OTHERS, POSTGRES, RATE, RELAY, WAL};
use crate::outbox::{Fill, Keys};
use crate::sitting::Sitting;
use crate::stored;

pub const FLOOR: &str = "row-lease baseline";

/// Few, since it is slow; and the fewer, the better for it: its claim looks at all that wait.
const EVENTS: u32 = 5_000;
const BATCH: i64 = 16;

const TABLE: &str = "
create table event_outbox (
  id uuid primary key default gen_random_uuid(),
  seq bigint generated always as identity,
  subject text not null,
  kind text not null,
  ordering_key text not null,
  envelope jsonb not null,
  status smallint not null default 0,
  attempts integer not null default 0,
  lease_id uuid,
  leased_until timestamptz,
  last_error text,
  occurred_at timestamptz not null default now(),
  available_at timestamptz not null default now(),
  published_at timestamptz,
  discarded_at timestamptz
);
create index on event_outbox (available_at, seq) where status = 0 and published_at is null;
create index on event_outbox (ordering_key, seq) where status = 0 and published_at is null";

/// The reference relay's, but for the columns that the audit wants.
const CLAIM: &str = "
WITH pending AS (
  SELECT candidate.id FROM event_outbox AS candidate
  WHERE candidate.status = 0 AND candidate.published_at IS NULL
    AND candidate.available_at <= CURRENT_TIMESTAMP
    AND (candidate.leased_until IS NULL OR candidate.leased_until <= CURRENT_TIMESTAMP)
    AND NOT EXISTS (
      SELECT 1 FROM event_outbox AS earlier
      WHERE earlier.ordering_key = candidate.ordering_key
        AND earlier.status = 0 AND earlier.published_at IS NULL
        AND earlier.seq < candidate.seq
    )
  ORDER BY candidate.available_at, candidate.seq
  LIMIT $1 FOR UPDATE OF candidate SKIP LOCKED
)
UPDATE event_outbox AS events
SET lease_id = $2, leased_until = CURRENT_TIMESTAMP + INTERVAL '60 seconds',
    attempts = LEAST(events.attempts, 2147483646) + 1
FROM pending WHERE events.id = pending.id
RETURNING events.id, events.subject, events.kind, events.envelope, events.attempts, events.seq, events.ordering_key";

/// The reference relay's.
const PUBLISHED: &str = "
UPDATE event_outbox
SET status = 1, published_at = CURRENT_TIMESTAMP, lease_id = NULL, leased_until = NULL, last_error = NULL
WHERE id = $1 AND lease_id = $2 AND status = 0";

pub fn group() -> Group {
    Group {
        name: "floor",
        lines: vec![Line::new(FLOOR, &[], |sitting| Box::pin(floor(sitting)))],
        columns: vec![
            Column::of(RATE, 0),
            Column::of(RELAY, 1),
            Column::of(POSTGRES, 1),
            Column::of(NATS, 1),
            Column::of(WAL, 0),
            Column::of(OTHERS, 0),
        ],
        goals: Vec::new(),
    }
}

async fn floor(sitting: &Sitting) -> Figures {
    let stage = &sitting.stage;
    let events = sitting.arguments.at_most(EVENTS);
    let database = stage.postgres.database().await;
    fill(&database, Fill::new(events, Keys::Over(10_000))).await;
    stage.stream().await;
    let context = stage.nats.jetstream().await;
    let pool = PgPoolOptions::new()
        .max_connections(10)
        .connect(&database.url_of(Role::Owner))
        .await
        .unwrap();
    let wal = stage.wal().await;
    let meter = Meter::start(stage.watched(None));
    while run_batch(&pool, &context).await > 0 {}
    let cost = meter.stop();
    let wal = (stage.wal().await - wal) / f64::from(events);
    let pending: i64 = sqlx::query_scalar("select count(*) from event_outbox where status = 0")
        .fetch_one(&pool)
        .await
        .unwrap();
    pool.close().await;
    let mut findings = audit::findings(&stored::arrived(stage).await, events.into());
    if pending > 0 {
        findings.push(format!("{pending} rows are still pending"));
    }
    sitting.audited(events.into(), findings);
    cost.figures(events)
        .with(WAL, wal)
        .remark(format!("{events} events"))
}

async fn fill(database: &Database, fill: Fill) {
    database
        .execute_as_superuser("grant create on schema public to public")
        .await;
    database.execute(TABLE).await;
    let insert = format!(
        "insert into event_outbox (subject, kind, ordering_key, envelope)
           select 'events.order.changed', 'order.changed', {}, {}::jsonb from generate_series(1, {}) n",
        fill.key(),
        fill.payload(),
        fill.events
    );
    database.execute(&insert).await;
    for sql in ["vacuum analyze event_outbox", "checkpoint"] {
        database.execute_as_superuser(sql).await;
    }
}

async fn run_batch(pool: &PgPool, context: &Context) -> usize {
    let lease = Uuid::now_v7();
    let claimed = sqlx::query(CLAIM)
        .bind(BATCH)
        .bind(lease)
        .fetch_all(pool)
        .await
        .unwrap();
    let publishes = claimed.iter().map(|row| async move {
        let id: Uuid = row.get("id");
        let seq: i64 = row.get("seq");
        let subject: String = row.get("subject");
        let Json(mut envelope): Json<serde_json::Value> = row.get("envelope");
        envelope["attempt"] = row.get::<i32, _>("attempts").into();
        let body = serde_json::to_vec(&envelope).unwrap();
        let headers = headers(id, seq, row.get("ordering_key"));
        context
            .publish_with_headers(subject, headers, body.into())
            .await
            .unwrap()
            .await
            .unwrap();
        let done = sqlx::query(PUBLISHED)
            .bind(id)
            .bind(lease)
            .execute(pool)
            .await
            .unwrap();
        assert_eq!(done.rows_affected(), 1, "the lease holds");
    });
    join_all(publishes).await;
    claimed.len()
}
