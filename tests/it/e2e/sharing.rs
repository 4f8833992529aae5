//! Several processes on one database, with the settings that everybody begins with: how long anything takes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::bench::{Bench, LONG, Written, assert_exactly, insert_on};
use crate::support::eventually;

const TTL: Duration = Duration::from_secs(15);

/// How many shards each owner has, the most first: `6, 5, 5` is 50506.
const SPREAD: &str = "select coalesce(sum(shards * power(100, place)), 0)::bigint from (
    select count(*) as shards, row_number() over (order by count(*) desc) - 1 as place
    from outbox.lease where owner is not null and expires_at > clock_timestamp() group by owner) as s";

/// Waits until the shards are shared like this, and tells how long it took.
async fn spread(bench: &Bench, wanted: i64) -> Duration {
    let began = Instant::now();
    let connection = Arc::new(tokio::sync::Mutex::new(bench.database.connect().await));
    eventually(LONG, "the shards are shared", || {
        let connection = Arc::clone(&connection);
        async move {
            let mut connection = connection.lock().await;
            let spread = super::bench::number_on(&mut connection, SPREAD).await;
            (spread == wanted).then_some(()).ok_or(spread.to_string())
        }
    })
    .await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_share_and_take_over_in_time() {
    let bench = Arc::new(Bench::new(&[]).await);
    let sent = bench.sent().await;
    let names: Vec<String> = (0..64).map(|key| format!("k{key}")).collect();
    let writing = Arc::new(AtomicBool::new(true));
    let writer = {
        let (bench, writing, names) = (Arc::clone(&bench), Arc::clone(&writing), names.clone());
        tokio::spawn(async move {
            let keys: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut connection = bench.database.writer().await;
            let mut written: Vec<(Instant, Written)> = Vec::new();
            while writing.load(Ordering::Relaxed) {
                let rows = insert_on(&mut connection, &keys, 1).await;
                let now = Instant::now();
                written.extend(rows.into_iter().map(|row| (now, row)));
                // The writer's pace.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            written
        })
    };
    let first = bench.process();
    spread(&bench, 16).await;
    let mut second = bench.process();
    let join = spread(&bench, 808).await;
    assert!(join < TTL * 2 / 3, "joined after {join:?}");
    let mut third = bench.process();
    let joined = spread(&bench, 50_506).await;
    assert!(joined < TTL * 2 / 3, "joined after {joined:?}");

    second.signal("TERM");
    assert!(second.wait_async(LONG).await.success());
    let left = spread(&bench, 808).await;
    assert!(left < Duration::from_secs(1), "taken over after {left:?}");

    third.kill9();
    let died = spread(&bench, 16).await;
    let limit = TTL + Duration::from_secs(2);
    assert!(died < limit, "taken over after {died:?}");
    writing.store(false, Ordering::Relaxed);
    let written = writer.await.unwrap();
    bench.emptied().await;
    let seen = bench.wait_for(written.len()).await;
    let latest = written
        .iter()
        .filter_map(|(at, row)| Some(sent.at(&format!("orders:{}", row.id))? - *at))
        .max();
    println!(
        "joining {join:?} and {joined:?}, leaving {left:?}, killed {died:?}; longest way {latest:?}"
    );
    assert!(latest.is_some_and(|latest| latest < limit), "{latest:?}");
    let rows: Vec<Written> = written.into_iter().map(|(_, row)| row).collect();
    assert_exactly(&rows, &seen);
    let mut last: HashMap<&str, i64> = HashMap::new();
    for message in &seen {
        let before = last.insert(&message.key, message.seq);
        assert!(before < Some(message.seq), "{message:?} after {before:?}");
    }
    let ids: Vec<Uuid> = seen.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), rows.len());
    drop(first);
}
