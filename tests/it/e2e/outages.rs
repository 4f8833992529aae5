//! What fails around a relay at work: how soon it shows, what goes on, and how soon all is well again when it is mended.
//!
//! Every test writes a few hundred events a second all the while. Each prints the figures that docs/reliability.md has, and
//! insists on its limits.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::bench::{
    Bench, LONG, Running, Sent, Written, assert_exactly, assert_in_order, insert_on,
};
use crate::support::eventually;
use crate::support::postgres::Database;

mod brokers;
mod databases;

/// Events of a transaction, one for each key, and transactions a second.
const KEYS: usize = 20;
const TRANSACTIONS: u64 = 20;

/// How long the rate is looked at before something fails.
const BEFORE: Duration = Duration::from_secs(3);

/// How soon an outage shows.
const SHOWN: Duration = Duration::from_secs(10);
/// How soon a link shows on which nothing comes back, though it stands.
const SHOWN_HALF_OPEN: Duration = Duration::from_secs(15);

/// A relay at work, and its writer.
struct Scene {
    bench: Bench,
    running: Running,
    sent: Sent,
    stop: Arc<AtomicBool>,
    writer: JoinHandle<Vec<Written>>,
    /// Events a second before anything failed.
    rate: f64,
}

/// When an outage began, and how long it took to show.
struct Outage {
    began: Instant,
    shown: Duration,
}

async fn write_until(database: Database, stop: Arc<AtomicBool>) -> Vec<Written> {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut connection = database.writer().await;
    let mut written = Vec::new();
    let mut pace = tokio::time::interval(Duration::from_millis(1_000 / TRANSACTIONS));
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        written.extend(insert_on(&mut connection, &keys, 1).await);
    }
    written
}

impl Scene {
    /// With these settings, once it has worked for a while.
    async fn new(bench: Bench) -> Self {
        let sent = bench.sent().await;
        let running = bench.relay().await;
        let stop = Arc::new(AtomicBool::new(false));
        let writer = tokio::spawn(write_until(bench.database.clone(), Arc::clone(&stop)));
        sent.wait_for(KEYS * TRANSACTIONS as usize).await;
        // The measurement itself.
        tokio::time::sleep(BEFORE).await;
        let rate = sent.since(Instant::now() - BEFORE) as f64 / BEFORE.as_secs_f64();
        let problems = running.relay.board().ready();
        assert!(problems.is_empty(), "{problems:?}");
        Self {
            bench,
            running,
            sent,
            stop,
            writer,
            rate,
        }
    }

    /// Waits until readiness names this part and these words; the outage has just begun.
    async fn shows(&self, part: &str, words: &str, limit: Duration) -> Outage {
        let began = Instant::now();
        let board = self.running.relay.board();
        eventually(limit, "the outage is shown", || async {
            let problems = board.ready();
            let named = |problem: &&outboxd::status::Problem| {
                problem.part == part && problem.reason.contains(words)
            };
            match problems.iter().find(named) {
                Some(_) => Ok(()),
                None => Err(format!("{problems:?}")),
            }
        })
        .await;
        Outage {
            began,
            shown: began.elapsed(),
        }
    }

    /// It was mended just now: the first publish, and the rate of before, within their limits. Then everything that was
    /// committed is there, each key in order, and nobody was charged for the outage.
    async fn recovers(self, name: &str, outage: Outage, first: Duration, full: Duration) {
        let (bench, running, written) = self.goes_on(name, outage, first, full).await;
        let seen = bench.wait_for(written.len()).await;
        assert_exactly(&written, &seen);
        all_is_well(bench, running).await;
    }

    /// The same where the stream is another one than before.
    async fn recovers_elsewhere(self, name: &str, outage: Outage, first: Duration, full: Duration) {
        let (bench, running, written) = self.goes_on(name, outage, first, full).await;
        let seen = bench.seen().await;
        assert_in_order(&seen);
        let stored: HashSet<i64> = seen.iter().map(|message| message.seq).collect();
        let oldest = seen.iter().map(|message| message.seq).min().unwrap();
        let later = written
            .iter()
            .filter(|event| event.seq > oldest + KEYS as i64);
        let lost: Vec<_> = later.filter(|event| !stored.contains(&event.seq)).collect();
        assert!(lost.is_empty(), "{} such as {:?}", lost.len(), lost[0]);
        // Not verified: it would tell, rightly, of everything that was deleted.
        nobody_was_charged(&bench, &running).await;
    }

    async fn goes_on(
        self,
        name: &str,
        outage: Outage,
        first: Duration,
        full: Duration,
    ) -> (Bench, Running, Vec<Written>) {
        let mended = Instant::now();
        let outage_lasted = mended - outage.began;
        let published = |count: usize, limit| {
            let sent = &self.sent;
            async move {
                eventually(limit, "events are published again", || async {
                    let since = sent.since(mended);
                    (since >= count)
                        .then_some(())
                        .ok_or(format!("{since} of {count}"))
                })
                .await;
                mended.elapsed()
            }
        };
        let first_after = published(1, first).await;
        // Since what waited comes at once, the rate is there as soon as this much of a second's work is done.
        let full_after = published((self.rate * 0.8) as usize, full).await;
        self.stop.store(true, Ordering::Relaxed);
        let written = self.writer.await.unwrap();
        self.bench.emptied().await;
        self.running.drained(LONG).await;
        println!(
            "{name}: {:.0} events a second before, shown after {:.1} s, first publish {:.1} s and the rate {:.1} s after it \
             was mended, which was {:.0} s after it began; {} of {} sent more than once",
            self.rate,
            outage.shown.as_secs_f64(),
            first_after.as_secs_f64(),
            full_after.as_secs_f64(),
            outage_lasted.as_secs_f64(),
            self.sent.duplicates(),
            written.len(),
        );
        (self.bench, self.running, written)
    }
}

async fn nobody_was_charged(bench: &Bench, running: &Running) {
    assert_eq!(running.metric("missed_total"), 0.0);
    for table in ["delivery", "discarded"] {
        let sql = format!("select count(*) from outbox.{table}");
        assert_eq!(bench.number(&sql).await, 0, "{table}");
    }
    let problems = running.relay.board().ready();
    assert!(problems.is_empty(), "{problems:?}");
}

async fn all_is_well(bench: Bench, running: Running) {
    nobody_was_charged(&bench, &running).await;
    let report = running.relay.shutdown().await.unwrap();
    assert_eq!(report.unknown, 0, "{report:?}");
    bench.verified().await;
}

/// The outage itself, for so long since it began.
async fn lasts(outage: &Outage, span: Duration) {
    tokio::time::sleep_until(outage.began + span).await;
}
