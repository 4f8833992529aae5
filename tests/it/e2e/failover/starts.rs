//! The relay is there before its database is.

use std::time::Duration;

use tokio::time::Instant;

use super::{Pair, RESUMED, lines, says, stays, unready};
use crate::cli_run::{ready, url_of};
use crate::e2e::bench::{Bench, assert_exactly};
use crate::support::nats;
use crate::support::postgres::{Database, Server};
use crate::support::process::Process;

/// How long the relay is watched while there is nothing for it to do.
const WATCHED: Duration = Duration::from_secs(4);

/// A relay that starts first: it waits, says so once, and begins when there is something to begin with.
async fn starts_first(
    why: &str,
    bench: &mut Bench,
    limit: Duration,
    there: impl AsyncFnOnce() -> Database,
) -> Process {
    let sent = bench.sent().await;
    let mut service = bench.process();
    let url = url_of(&mut service).await;
    unready(&url, why).await;
    says(&service, "sink takes events").await;
    let quiet_from = lines(&service);
    stays(WATCHED, || assert_eq!(sent.count(), 0)).await;
    let output = service.output();
    assert_eq!(
        output.matches("database cannot be reached").count(),
        1,
        "{output}"
    );
    assert_eq!(lines(&service), quiet_from, "{output}");
    bench.database = there().await;
    let began = Instant::now();
    sent.wait_for(1).await;
    let resumed = began.elapsed();
    println!("waited for {why:?}; sent {resumed:.1?} after the database was there");
    assert!(resumed < limit, "after {resumed:?}");
    ready(&url).await;
    service
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_starts_before_its_database_begins_with_it() {
    let mut server = Server::start_own(&[]).await;
    let database = server.database().await;
    let mut bench = Bench::over(
        database.clone(),
        nats::Server::start().await,
        &[("http.listen", "127.0.0.1:0")],
    )
    .await;
    let written = bench.insert(&["k", "l"], 10).await;
    server.stop_fast().await;
    let limit = Duration::from_secs(2);
    let _service = starts_first("refused", &mut bench, limit, async || {
        server.restart().await;
        database
    })
    .await;
    assert_exactly(&written, &bench.wait_for(written.len()).await);
    bench.emptied().await;
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_starts_on_a_standby_begins_with_its_promotion() {
    let mut pair = Pair::new(true, &[("http.listen", "127.0.0.1:0")]).await;
    let mut written = pair.bench.insert(&["k", "l"], 10).await;
    pair.new.caught_up_with(&pair.old).await;
    pair.name.lead_to(pair.new.address());
    pair.old.kill9().await;
    let (new, copy) = (&pair.new, pair.copy.clone());
    let _service = starts_first("read-only", &mut pair.bench, RESUMED, async || {
        new.promote().await;
        copy
    })
    .await;
    written.extend(pair.bench.insert(&["k", "l"], 10).await);
    assert_exactly(&written, &pair.bench.wait_for(written.len()).await);
    pair.bench.emptied().await;
    pair.bench.verified().await;
}
