//! The name leads to a server that takes no writes before it leads to the new primary.

use std::time::Duration;

use tokio::time::Instant;

use super::{Pair, RESUMED, lines, says, stays, unready};
use crate::cli_run::{ready, url_of};
use crate::e2e::bench::{assert_exactly, insert_on};

/// How long the relay is watched while it must do nothing.
const WATCHED: Duration = Duration::from_secs(8);

/// How the old primary is found under the name again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Demoted {
    /// As it was, with writes switched off.
    ReadOnly,
    /// As a standby of the new one.
    Standby,
}

/// The name leads to a server that takes no writes before it leads to the new primary.
async fn comes_back(demoted: Demoted) {
    let mut pair = Pair::new(true, &[("http.listen", "127.0.0.1:0")]).await;
    let sent = pair.bench.sent().await;
    let mut service = pair.bench.process();
    let url = url_of(&mut service).await;
    let mut written = pair.bench.insert(&["k", "l"], 10).await;
    pair.bench.wait_for(written.len()).await;
    pair.bench.emptied().await;
    pair.new.caught_up_with(&pair.old).await;
    let original = pair.bench.database.clone();

    let before = lines(&service);
    pair.old.kill9().await;
    pair.promote().await;
    written.extend(pair.bench.insert(&["k", "l"], 10).await);
    let mut _follower = None;
    match demoted {
        Demoted::ReadOnly => {
            pair.old.restart_read_only().await;
            // What it alone has must not leave it any more.
            let mut stubborn = original.writer().await;
            sqlx::raw_sql("set default_transaction_read_only = off")
                .execute(&mut stubborn)
                .await
                .unwrap();
            insert_on(&mut stubborn, &["k", "stale"], 10).await;
        }
        Demoted::Standby => {
            let follower = pair.new.standby(pair.new.port()).await;
            pair.name.lead_to(follower.address());
            _follower = Some(follower);
        }
    }
    let back = Instant::now();
    unready(&url, "read-only").await;
    says(&service, "an old primary?").await;
    let shown = back.elapsed();
    let quiet_from = lines(&service);
    for _ in 0..4 {
        written.extend(pair.bench.insert(&["k", "l"], 10).await);
        stays(WATCHED / 4, || {
            assert_eq!(sent.count(), 20, "sent in spite of it all");
        })
        .await;
    }
    unready(&url, "read-only").await;
    let repeated = lines(&service) - quiet_from;

    pair.name.lead_to(pair.new.address());
    let moved = Instant::now();
    sent.wait_for(21).await;
    let resumed = moved.elapsed();
    assert!(resumed < RESUMED, "after {resumed:?}");
    ready(&url).await;
    pair.bench.wait_for(written.len()).await;
    pair.bench.emptied().await;
    let spoken = lines(&service) - before;
    println!(
        "{demoted:?}: said read-only after {shown:.1?}, and {repeated} lines more in {WATCHED:?}; sent {resumed:.1?} \
         after the name had moved; {spoken} lines in all"
    );
    // Each part that was cut off says so once, and once that it is back.
    assert!(repeated <= 2 && spoken <= 12, "{}", service.output());
    assert_exactly(&written, &pair.bench.seen().await);
    assert_eq!(sent.duplicates(), 0);
    pair.bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_is_read_only_delivers_nothing_until_the_name_moves() {
    comes_back(Demoted::ReadOnly).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_is_a_standby_now_delivers_nothing_until_the_name_moves() {
    comes_back(Demoted::Standby).await;
}
