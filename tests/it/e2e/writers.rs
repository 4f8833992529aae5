//! Applications under load: concurrent writers with rollbacks and transactions that stay open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::bench::Written;

/// What the writers do together.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub writers: u64,
    /// Rows inserted, those of transactions that are rolled back included.
    pub events: u32,
    pub keys: u64,
    /// Most rows of one transaction.
    pub per_transaction: u32,
    /// Writers of one key wait for each other before they insert, as the order of commits asks for.
    pub serialized: bool,
    /// One transaction in so many stays open.
    pub held_one_in: u64,
    /// Shortest and longest time that it does, milliseconds.
    pub held_ms: (u64, u64),
}

/// One transaction in so many is rolled back.
const ROLLED_BACK_ONE_IN: u64 = 20;

/// What became of it all.
#[derive(Debug, Default)]
pub struct Outcome {
    pub committed: Vec<Written>,
    pub rolled_back: u32,
    pub held: u32,
}

/// A generator of numbers that is the same in every run (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }
}

/// The payload of event number `n`: about 1 KiB of JSON whose spaces and digits have to survive.
pub fn payload(n: u32) -> String {
    let mut random = Random(u64::from(n));
    let mut text = format!("{{\"n\" : {n}, \"price\": 10.00, \"text\": \"");
    while text.len() < 1_000 {
        text.push_str(&format!("{:016x} ", random.next()));
    }
    text.push_str("\"}");
    text
}

/// Takes the numbers of the next transaction; none when all are taken.
fn take(left: &AtomicU32, most: u32) -> std::ops::Range<u32> {
    let before = left
        .try_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            Some(n.saturating_sub(most))
        })
        .unwrap_or(0);
    before.saturating_sub(most)..before
}

/// Runs the plan against PostgreSQL.
pub async fn postgres(url: &str, plan: Plan) -> Outcome {
    let left = Arc::new(AtomicU32::new(plan.events));
    let mut writers = JoinSet::new();
    for writer in 0..plan.writers {
        let (url, left) = (url.to_owned(), Arc::clone(&left));
        writers.spawn(async move {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            let outcome = postgres_writer(&mut connection, plan, writer, &left).await;
            connection.close().await.unwrap();
            outcome
        });
    }
    joined(writers).await
}

async fn joined(mut writers: JoinSet<Outcome>) -> Outcome {
    let mut all = Outcome::default();
    while let Some(outcome) = writers.join_next().await {
        let outcome = outcome.unwrap();
        all.committed.extend(outcome.committed);
        all.rolled_back += outcome.rolled_back;
        all.held += outcome.held;
    }
    all
}

async fn postgres_writer(
    connection: &mut PgConnection,
    plan: Plan,
    writer: u64,
    left: &AtomicU32,
) -> Outcome {
    let mut random = Random(writer << 32);
    let mut outcome = Outcome::default();
    loop {
        let numbers = take(
            left,
            1 + random.below(u64::from(plan.per_transaction) * 2) as u32,
        );
        if numbers.is_empty() {
            return outcome;
        }
        let mut transaction = connection.begin().await.unwrap();
        let keys = loop {
            let wanted = 1 + random.below(4);
            let wanted = (0..wanted).map(|_| format!("key-{}", random.below(plan.keys)));
            let wanted: Vec<String> = wanted.collect();
            if !plan.serialized {
                break wanted;
            }
            // Each takes the keys that nobody else is writing now, so that no transaction waits for one
            // that stays open.
            let free: Vec<String> = sqlx::query_scalar(
                "select k from (select distinct k from unnest($1::text[]) as k) as keys
                 where pg_try_advisory_xact_lock(hashtextextended(k, 7))",
            )
            .bind(&wanted)
            .fetch_all(&mut *transaction)
            .await
            .unwrap();
            if !free.is_empty() {
                break free;
            }
        };
        // Two statements, so that the numbers of two transactions mingle.
        let numbers: Vec<u32> = numbers.collect();
        let mut written = Vec::new();
        for part in numbers.chunks(numbers.len().div_ceil(2)) {
            let key = |_| keys[random.below(keys.len() as u64) as usize].clone();
            let part_keys: Vec<String> = part.iter().map(key).collect();
            let payloads: Vec<String> = part.iter().map(|n| payload(*n)).collect();
            written.extend(insert(&mut transaction, &part_keys, &payloads).await);
        }
        if random.one_in(plan.held_one_in) {
            outcome.held += 1;
            let (shortest, longest) = plan.held_ms;
            let held = shortest + random.below(longest - shortest);
            // The transaction that stays open is what the test is about.
            tokio::time::sleep(Duration::from_millis(held)).await;
        }
        if random.one_in(ROLLED_BACK_ONE_IN) {
            transaction.rollback().await.unwrap();
            outcome.rolled_back += written.len() as u32;
        } else {
            transaction.commit().await.unwrap();
            outcome.committed.extend(written);
        }
    }
}

async fn insert(
    connection: &mut PgConnection,
    keys: &[String],
    payloads: &[String],
) -> Vec<Written> {
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(
        "insert into outbox.event (kind, ordering_key, payload)
         select 'order.made', k, p::json from unnest($1::text[], $2::text[]) as r (k, p)
         returning id, seq",
    )
    .bind(keys)
    .bind(payloads)
    .fetch_all(connection)
    .await
    .unwrap();
    let written = |(((id, seq), key), payload): (((Uuid, i64), &String), &String)| Written {
        id,
        seq,
        key: key.clone(),
        payload: payload.clone(),
    };
    rows.into_iter()
        .zip(keys)
        .zip(payloads)
        .map(written)
        .collect()
}

/// Runs the plan against SQLite, where one transaction writes at a time.
pub async fn sqlite(path: &std::path::Path, plan: Plan) -> Outcome {
    let left = Arc::new(AtomicU32::new(plan.events));
    let mut writers = JoinSet::new();
    for writer in 0..plan.writers {
        let left = Arc::clone(&left);
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(60));
        writers.spawn(async move {
            let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
            let outcome = sqlite_writer(&mut connection, plan, writer, &left).await;
            connection.close().await.unwrap();
            outcome
        });
    }
    joined(writers).await
}

async fn sqlite_writer(
    connection: &mut SqliteConnection,
    plan: Plan,
    writer: u64,
    left: &AtomicU32,
) -> Outcome {
    let mut random = Random(writer << 32);
    let mut outcome = Outcome::default();
    loop {
        let numbers = take(
            left,
            1 + random.below(u64::from(plan.per_transaction) * 2) as u32,
        );
        if numbers.is_empty() {
            return outcome;
        }
        let mut transaction = connection.begin_with("begin immediate").await.unwrap();
        let mut written = Vec::new();
        for n in numbers {
            let (key, payload) = (format!("key-{}", random.below(plan.keys)), payload(n));
            let (id, seq): (String, i64) = sqlx::query_as(
                "insert into outbox_event (kind, ordering_key, payload)
                 values ('order.made', $1, $2) returning id, seq",
            )
            .bind(&key)
            .bind(&payload)
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
            let id = id.parse().unwrap();
            written.push(Written {
                id,
                seq,
                key,
                payload,
            });
        }
        if random.one_in(plan.held_one_in) {
            outcome.held += 1;
            let (shortest, longest) = plan.held_ms;
            let held = shortest + random.below(longest - shortest);
            // The transaction that stays open is what the test is about.
            tokio::time::sleep(Duration::from_millis(held)).await;
        }
        if random.one_in(ROLLED_BACK_ONE_IN) {
            transaction.rollback().await.unwrap();
            outcome.rolled_back += written.len() as u32;
        } else {
            transaction.commit().await.unwrap();
            outcome.committed.extend(written);
        }
    }
}
