//! Every kind of actor is killed under load: the tree heals without loss or disorder.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboxd::actor::restart::Role;
use outboxd::ractor::ActorId;

use super::bench::{Bench, LONG, Running, Sent, Written, assert_exactly, insert_on};
use crate::support::eventually;
use crate::support::postgres::Database;

/// How often each role dies.
const ROUNDS: usize = 6;

/// Events that the writer may be ahead of what was sent: always enough work, and never more than is
/// delivered in moments.
const AHEAD: usize = 4_000;

async fn write_until(database: Database, sent: Arc<Sent>, stop: Arc<AtomicBool>) -> Vec<Written> {
    let keys: Vec<String> = (0..200).map(|key| format!("k{key}")).collect();
    let mut connection = database.writer().await;
    let mut written = Vec::new();
    for part in keys.chunks(20).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        while written.len() > sent.distinct() + AHEAD && !stop.load(Ordering::Relaxed) {
            // The pace of the writer.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let keys: Vec<&str> = part.iter().map(String::as_str).collect();
        written.extend(insert_on(&mut connection, &keys, 2).await);
    }
    written
}

/// Kills one that was not killed before.
async fn kill_one(running: &Running, role: Role, killed: &mut HashSet<ActorId>) {
    let victim = eventually(LONG, "there is one to kill", || {
        let victim = running
            .relay
            .members()
            .into_iter()
            .find(|member| member.role == role && !killed.contains(&member.cell.get_id()));
        async move { victim.ok_or_else(|| "none lives".to_owned()) }
    })
    .await;
    killed.insert(victim.cell.get_id());
    victim.cell.kill();
}

async fn heals(roles: &[Role]) {
    let bench = Bench::new(&[("databases.orders.sweep_every", "2s")]).await;
    let sent = Arc::new(bench.sent().await);
    let running = bench.relay().await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_until(
        bench.database.clone(),
        Arc::clone(&sent),
        Arc::clone(&stop),
    ));
    let mut killed = HashSet::new();
    let mut victims: VecDeque<Role> = roles
        .iter()
        .copied()
        .cycle()
        .take(ROUNDS * roles.len())
        .collect();
    let kills = victims.len();
    while let Some(role) = victims.pop_front() {
        // Each finds work under way, and each finds the tree healed from the one before.
        let before = sent.count();
        sent.wait_for(before + 300).await;
        kill_one(&running, role, &mut killed).await;
    }
    let before = sent.count();
    sent.wait_for(before + 300).await;
    stop.store(true, Ordering::Relaxed);
    let written = writer.await.unwrap();
    let seen = bench.wait_for(written.len()).await;
    bench.emptied().await;
    running.drained(LONG).await;
    let duplicates = sent.duplicates();
    println!(
        "{} events, {kills} kills, {duplicates} sent more than once",
        written.len()
    );
    assert_exactly(&written, &seen);
    assert!(seen.iter().all(|message| message.attempt == 1));
    assert_eq!(running.metric("missed_total"), 0.0);
    assert!(duplicates <= kills * 2_048, "{duplicates}");
    let board = running.relay.board();
    assert!(board.ready().is_empty(), "{:?}", board.ready());
    let report = running.relay.shutdown();
    let report = tokio::time::timeout(Duration::from_secs(30), report).await;
    report.unwrap().unwrap();
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_killed_publishers() {
    heals(&[Role::Publisher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_killed_sequencers() {
    heals(&[Role::Sequencer]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_killed_claimers() {
    heals(&[Role::Claimer]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_killed_settlers() {
    heals(&[Role::Settler]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_killed_keepers() {
    heals(&[Role::Keeper]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_killed_databases() {
    heals(&[Role::Database]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_all_of_them_in_turn() {
    heals(&[
        Role::Publisher,
        Role::Sequencer,
        Role::Claimer,
        Role::Settler,
        Role::Keeper,
        Role::Database,
    ])
    .await;
}
