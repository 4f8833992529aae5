//! No false alarm while a relay is at work.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;
use crate::e2e::bench::insert_on;
use crate::support::eventually;
use crate::support::verified::assert_fits;

/// Rounds of verification, each of them while this many events are written, sent and settled.
const ROUNDS: usize = 12;
const EACH: usize = 2_000;

/// Three writers that write as many events as they are allowed to, until nothing will be allowed any more.
fn writers(bench: &Bench, allowed: &Arc<Semaphore>) -> Vec<JoinHandle<usize>> {
    let writer = |n: usize| {
        let (database, allowed) = (bench.database.clone(), Arc::clone(allowed));
        tokio::spawn(async move {
            let mut connection = database.writer().await;
            let keys: Vec<String> = (0..20).map(|key| format!("w{n}-{key}")).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let mut count = 0;
            while let Ok(permit) = allowed.acquire_many(keys.len() as u32).await {
                permit.forget();
                count += insert_on(&mut connection, &keys, 1).await.len();
            }
            count
        })
    };
    (0..3).map(writer).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_at_work_gives_no_false_alarm_not_even_when_it_is_killed() {
    let bench = Bench::new(&[
        ("lease.ttl", "4s"),
        ("sinks.events.publish_timeout", "1500ms"),
    ])
    .await;
    let mut service = bench.process();
    let allowed = Arc::new(Semaphore::new(EACH));
    let writers = writers(&bench, &allowed);
    bench.wait_until(100).await;
    let mut in_flight = 0;
    for round in 0..ROUNDS {
        allowed.add_permits(EACH);
        in_flight += bench.verified().await[0].in_flight;
        if round == ROUNDS / 2 {
            let before = bench.count().await;
            allowed.add_permits(EACH);
            bench.wait_until(before + EACH as u64 / 10).await;
            service.signal("KILL");
            service.wait_async(LONG).await;
            // What was out is in nobody's hands now.
            let report = &bench.reports().await[0];
            assert_fits(report);
            in_flight += report.in_flight;
            service = bench.process();
            allowed.add_permits(EACH);
            let before = bench.count().await;
            eventually(LONG, "the next one delivers", || async {
                let count = bench.count().await;
                (count > before)
                    .then_some(())
                    .ok_or(format!("still {count}"))
            })
            .await;
        }
    }
    allowed.close();
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    println!("{in_flight} messages were on their way in {ROUNDS} rounds over {written} events");
    bench.emptied().await;
    let report = bench.verified().await.remove(0);
    assert_eq!(
        (report.delivered, report.held),
        (written as u64, written as u64)
    );
    drop(service);
}
