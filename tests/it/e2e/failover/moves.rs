//! The primary dies under load, the standby is promoted, the name moves.

use std::collections::HashSet;
use std::time::Duration;

use outboxd::verify::Finding;
use sqlx::Connection as _;
use tokio::time::Instant;
use uuid::Uuid;

use super::{MISSED, Pair, RESUMED, SHOWN, events_in, stays};
use crate::e2e::bench::{LONG, Running, Sent, Written, assert_exactly, insert_on};
use crate::e2e::ledger::{Writers, whole};
use crate::support::postgres::Database;
use crate::support::proxy::Mode;
use crate::support::{eventually, verified};

/// Most of the rate from before is there within this, counted in the same way.
const RECOVERED: Duration = Duration::from_secs(20);

/// What a rate is looked at over.
const SPAN: Duration = Duration::from_secs(2);

/// Events that are in the middle of everything when the old primary ends: so many of each of these keys.
const BULK: (usize, usize) = (200, 10);

/// New events a second, over the last moments.
fn rate(sent: &Sent) -> f64 {
    sent.new_since(Instant::now() - SPAN) as f64 / SPAN.as_secs_f64()
}

/// Waits until readiness names the database.
async fn outage_shows(running: &Running, limit: Duration) {
    let board = running.relay.board();
    eventually(limit, "the outage is shown", || async {
        let problems = board.ready();
        let named = problems.iter().any(|problem| problem.part == "database");
        named.then_some(()).ok_or(format!("{problems:?}"))
    })
    .await;
}

/// Waits until an event that only the new primary has is sent.
async fn goes_on(pair: &Pair, running: &Running, sent: &Sent) -> (Written, Instant) {
    let mut connection = pair.copy.writer().await;
    let fresh = insert_on(&mut connection, &["fresh"], 1).await.remove(0);
    let id = format!("orders:{}", fresh.id);
    let board = running.relay.board();
    let at = eventually(RESUMED, "a new event is sent", || async {
        sent.at(&id)
            .ok_or_else(|| format!("{:?}", board.snapshot()))
    })
    .await;
    (fresh, at)
}

/// What a failover is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Commits waited for the standby.
    Synchronous,
    /// The same, and nobody reaches the old primary's machine any more: nothing is answered and nothing is refused.
    Silent,
    /// The standby was behind.
    Behind,
    /// The standby was behind, and writers know the new primary before the relay does.
    Late,
}

async fn failed_over(how: How) {
    let synchronous = matches!(how, How::Synchronous | How::Silent);
    let mut pair = Pair::new(synchronous, &[]).await;
    let sent = pair.bench.sent().await;
    let running = pair.bench.relay().await;
    let writers = Writers::start(&pair.writers_url());
    sent.wait_for(1).await;
    let warm = Instant::now();
    eventually(LONG, "there is a rate", || async {
        let ended = warm.elapsed() > 2 * SPAN;
        ended.then_some(()).ok_or("not long enough".to_owned())
    })
    .await;
    let before = rate(&sent);
    let mut ahead = 0;
    let mut waiting = Vec::new();
    if !synchronous {
        // The standby falls behind: what comes now is in the old primary only, delivered or not.
        pair.replication.set(Mode::Hole);
        let held_up = sent.count();
        waiting = due_later(&pair.bench.database).await;
        sent.wait_for(held_up + 100).await;
        ahead = sent.count() - held_up;
    }

    let bulk = if how == How::Late { 0 } else { BULK.0 };
    let keys: Vec<String> = (0..bulk).map(|key| format!("bulk{key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let bulk = pair.bench.insert(&keys, BULK.1).await;
    sent.wait_for(sent.count() + 1).await;
    match how {
        How::Silent => {
            pair.way.set(Mode::Hole);
            pair.replication.set(Mode::Hole);
        }
        _ => pair.old.kill9().await,
    }
    let killed = Instant::now();
    let limit = if how == How::Silent { MISSED } else { SHOWN };
    outage_shows(&running, limit).await;
    let shown = killed.elapsed();
    let held = pair.promote().await;
    let writable = Instant::now();
    // So far everything was written to the old primary.
    let old = writers.ledger();
    let committed = old.committed.iter().chain(&bulk).map(|event| event.id);
    let committed = committed.chain(waiting.iter().copied());
    let lost: HashSet<Uuid> = committed.filter(|id| !held.contains(id)).collect();
    pair.writers.lead_to(pair.new.address());
    let mut moved = writable;
    if how == How::Late {
        // Numbers beyond those that the old primary gave out.
        let most = old.committed.iter().map(|event| event.seq).max().unwrap();
        eventually(LONG, "the new primary is ahead", || async {
            let now = writers
                .ledger()
                .committed
                .last()
                .map_or(0, |event| event.seq);
            (now > most + 500).then_some(()).ok_or(now.to_string())
        })
        .await;
        // Whoever asks about the leases waits a moment, whoever reads does not.
        let mut busy = pair.copy.connect().await;
        let mut lock = busy.begin().await.unwrap();
        sqlx::query("lock table outbox.lease in exclusive mode")
            .execute(&mut *lock)
            .await
            .unwrap();
        pair.name.lead_to(pair.new.address());
        stays(SPAN, || ()).await;
        lock.rollback().await.unwrap();
        moved = Instant::now();
    }
    pair.name.lead_to(pair.new.address());
    let (fresh, at) = goes_on(&pair, &running, &sent).await;
    let resumed = at - moved;
    let caught_up = eventually(RECOVERED, "what had waited is sent", || async {
        let owed = bulk.iter().filter(|event| !lost.contains(&event.id));
        let sent_at = owed.map(|event| sent.at(&format!("orders:{}", event.id)));
        let all: Option<Vec<Instant>> = sent_at.collect();
        let latest = all.map(|all| all.into_iter().fold(at, Instant::max));
        latest.ok_or("not yet".to_owned())
    })
    .await;
    let written_before = writers.ledger().committed.len();
    let again = eventually(RECOVERED, "the rate is back", || async {
        let now = rate(&sent);
        let new = caught_up.elapsed() >= SPAN;
        (new && now >= 0.8 * before).then_some(now).ok_or_else(|| {
            let written = writers.ledger().committed.len() - written_before;
            format!("{now:.0} of {before:.0} a second, and {written} written since all was sent")
        })
    })
    .await;
    let recovered = moved.elapsed();
    assert!(resumed < RESUMED, "after {resumed:?}");
    assert!(recovered < RECOVERED, "after {recovered:?}");

    let ledger = writers.stop().await;
    pair.bench.emptied().await;
    running.drained(LONG).await;
    let known = events_in(&pair.copy).await;
    let mut expected: Vec<Written> = ledger.committed;
    expected.extend(bulk);
    expected.retain(|event| !lost.contains(&event.id));
    expected.extend(whole(&ledger.unanswered, &known));
    expected.push(fresh);
    let mut seen = pair.bench.seen().await;
    let all = seen.len();
    seen.retain(|message| !lost.contains(&message.id));
    let phantoms = all - seen.len();
    println!(
        "{how:?}: shown after {shown:.1?}; a new event {resumed:.1?} and {again:.0} of {before:.0} \
         events a second {recovered:.1?} after the new primary took writes; {} events, {} sent more than once, {} lost \
         with the old primary, {phantoms} of them delivered before",
        expected.len(),
        sent.duplicates(),
        lost.len()
    );
    assert_exactly(&expected, &seen);
    assert!(seen.iter().all(|message| message.attempt == 1));
    // What was on its way or settled in the last moments, and what was settled while the standby was behind.
    assert!(sent.duplicates() <= 4_096 + ahead, "{}", sent.duplicates());
    assert_eq!(running.metric("missed_total"), 0.0);
    // What had been read of it may still have been on its way, but no longer than that.
    let first = |id: &Uuid| sent.at(&format!("orders:{id}"));
    assert!(lost.iter().filter_map(first).all(|lost| lost < at));
    assert!(waiting.iter().filter_map(first).all(|due| due < killed));
    running.relay.shutdown().await.unwrap();
    if synchronous {
        assert!(lost.is_empty(), "{lost:?}");
        pair.bench.verified().await;
        return;
    }
    assert!(phantoms > 0, "the standby was not behind");
    // Nothing else is wrong than that: the sink holds what the database forgot.
    let mut report = pair.bench.reports().await.remove(0);
    assert_eq!(report.without_row.count, phantoms as u64);
    report.without_row = Finding::default();
    report.ok = report.findings().iter().all(|(_, found)| found.count == 0);
    verified::assert_fits(&report);
}

/// Events that are due when the old primary is gone.
async fn due_later(database: &Database) -> Vec<Uuid> {
    sqlx::query_scalar(
        "insert into outbox.event (kind, ordering_key, payload, available_at)
         select 'order.made', 'later', '{}', now() + interval '5 s' from generate_series(1, 10)
         returning id",
    )
    .fetch_all(&mut database.writer().await)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_commits_waited_for_the_standby() {
    failed_over(How::Synchronous).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_gone_without_a_word_is_missed() {
    failed_over(How::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_the_old_primary_had_is_gone_and_the_rest_goes_on() {
    failed_over(How::Behind).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_new_primary_numbers_anew_comes_in_order() {
    failed_over(How::Late).await;
}
