//! The program under signals: an orderly end in the middle of work, a forced one, and none at all.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, LONG, Sent, Written, assert_exactly};
use crate::support::eventually;
use crate::support::process::Process;
use crate::support::proxy::{Mode, Proxy};

const GRACE: Duration = Duration::from_secs(5);

/// A bench whose relay reaches the broker by way of a proxy.
async fn behind_a_proxy(settings: &[(&str, &str)]) -> (Bench, Proxy) {
    let bench = Bench::new(settings).await;
    let network = Proxy::to(bench.nats.address()).await;
    let url = format!("nats://{}", network.address());
    let bench = bench.with(&[("sinks.events.url", &url), ("shutdown.grace", "5s")]);
    (bench, network)
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|key| format!("k{key}")).collect()
}

/// Inserts `each` events for each of `count` keys.
async fn insert(bench: &Bench, count: usize, each: usize) -> Vec<Written> {
    let keys = keys(count);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    bench.insert(&keys, each).await
}

/// The program is connected and owns the database: one event has gone through.
async fn warm(bench: &Bench) -> Vec<Written> {
    let written = bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    bench.emptied().await;
    written
}

/// The number behind a word in the line that says how it ended.
fn reported(output: &str, word: &str) -> usize {
    let line = output
        .lines()
        .rev()
        .find(|line| line.contains("stopped"))
        .unwrap_or_else(|| panic!("no report in:\n{output}"));
    let (_, rest) = line.split_once(&format!("{word}=")).unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

async fn says(service: &Process, what: &str) {
    eventually(LONG, "the program says it", || {
        let output = service.output();
        async move { output.contains(what).then_some(()).ok_or(output) }
    })
    .await;
}

async fn owned_shards(bench: &Bench) -> i64 {
    bench
        .number("select count(*) from outbox.lease where owner is not null and expires_at > now()")
        .await
}

/// Ends the program by SIGTERM while acknowledgements are outstanding, once so many were sent in all; gives the time that
/// it took.
async fn terminated_in_a_batch(
    network: &Proxy,
    sent: &Sent,
    total: usize,
    service: &mut Process,
) -> Duration {
    sent.wait_for(total).await;
    service.signal("TERM");
    let asked = Instant::now();
    let status = service.wait_async(LONG).await;
    let took = asked.elapsed();
    let output = service.output();
    assert!(status.success(), "{status:?}\n{output}");
    assert!(output.contains("SIGTERM"), "{output}");
    network.set(Mode::Pass);
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_in_a_batch_waits_for_the_answers_and_the_next_one_goes_on_at_once() {
    let (bench, network) = behind_a_proxy(&[]).await;
    let sent = bench.sent().await;
    let mut service = bench.process();
    let mut written = warm(&bench).await;
    network.set(Mode::Lag(Duration::from_millis(300)));
    written.extend(insert(&bench, 200, 20).await);
    // Sent, and some time away from being known to be; a batch takes about five round trips.
    let took = terminated_in_a_batch(&network, &sent, 101, &mut service).await;
    assert!(took < GRACE + Duration::from_secs(1), "after {took:?}");

    let output = service.output();
    let (acked, returned) = (reported(&output, "acked"), reported(&output, "returned"));
    println!("ended after {took:?}: {acked} acked, {returned} returned");
    assert_eq!(reported(&output, "unknown"), 0, "{output}");
    assert!(acked > 0, "{output}");
    let settled = bench.number("select count(*) from outbox.published").await;
    assert_eq!(
        settled as u64,
        bench.count().await,
        "all answers are written"
    );
    assert_eq!(owned_shards(&bench).await, 0);
    assert_eq!(
        bench.number("select count(*) from outbox.instance").await,
        0
    );

    let before = sent.count();
    let started = Instant::now();
    let _next = bench.process();
    sent.wait_for(before + 1).await;
    let resumed = started.elapsed();
    assert!(resumed < Duration::from_secs(5), "after {resumed:?}");
    let seen = bench.wait_for(written.len()).await;
    bench.emptied().await;
    assert_exactly(&written, &seen);
    assert_eq!(sent.duplicates(), 0, "nothing was left unknown");
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grace_that_is_not_enough_leaves_unknown_outcomes_that_repeat_under_the_same_ids() {
    let (bench, network) = behind_a_proxy(&[]).await;
    let bench = bench.with(&[
        ("shutdown.grace", "2s"),
        ("sinks.events.publish_timeout", "10s"),
        ("sinks.events.mode", "single"),
    ]);
    let sent = bench.sent().await;
    let mut service = bench.process();
    let mut written = warm(&bench).await;
    // Requests are carried out, answers never arrive.
    network.set(Mode::Mute);
    written.extend(insert(&bench, 150, 2).await);
    let took = terminated_in_a_batch(&network, &sent, 151, &mut service).await;
    assert!(took < Duration::from_secs(3), "after {took:?}");
    let unknown = reported(&service.output(), "unknown");
    println!("ended after {took:?}: {unknown} unknown");
    assert_eq!(unknown, 150, "one of each key is out");
    assert_eq!(owned_shards(&bench).await, 0, "given back all the same");

    let _next = bench.process();
    let seen = bench.wait_for(written.len()).await;
    bench.emptied().await;
    assert_exactly(&written, &seen);
    let duplicates = sent.duplicates();
    assert!(duplicates <= unknown, "{duplicates} of {unknown}");
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grace_that_is_not_enough_for_a_lane_leaves_its_events_for_the_next_one() {
    let (bench, network) = behind_a_proxy(&[]).await;
    let bench = bench.with(&[
        ("shutdown.grace", "2s"),
        ("sinks.events.publish_timeout", "10s"),
    ]);
    let sent = bench.sent().await;
    let mut service = bench.process();
    let mut written = warm(&bench).await;
    let before = sent.count();
    network.set(Mode::Mute);
    written.extend(insert(&bench, 20, 50).await);
    sent.wait_for(before + 1).await;
    service.signal("TERM");
    let asked = Instant::now();
    let status = service.wait_async(LONG).await;
    let took = asked.elapsed();
    assert!(status.success(), "{status:?}\n{}", service.output());
    assert!(took < Duration::from_secs(3), "after {took:?}");
    assert_eq!(owned_shards(&bench).await, 0, "given back all the same");
    network.set(Mode::Pass);

    let _next = bench.process();
    let seen = bench.wait_for(written.len()).await;
    bench.emptied().await;
    assert_exactly(&written, &seen);
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_at_once() {
    let (bench, network) = behind_a_proxy(&[]).await;
    let bench = bench.with(&[
        ("shutdown.grace", "60s"),
        ("sinks.events.publish_timeout", "10s"),
        ("sinks.events.mode", "single"),
    ]);
    let sent = bench.sent().await;
    let mut service = bench.process();
    let mut written = warm(&bench).await;
    network.set(Mode::Mute);
    written.extend(insert(&bench, 150, 2).await);
    sent.wait_for(151).await;
    service.signal("TERM");
    says(&service, "SIGTERM").await;
    service.signal("INT");
    let asked = Instant::now();
    let status = service.wait_async(LONG).await;
    let took = asked.elapsed();
    assert_eq!(status.code(), Some(1), "{}", service.output());
    assert!(took < Duration::from_secs(1), "after {took:?}");
    assert!(service.output().contains("again"), "{}", service.output());

    network.set(Mode::Pass);
    let _next = bench.process();
    let seen = bench.wait_for(written.len()).await;
    bench.emptied().await;
    assert_exactly(&written, &seen);
    bench.verified().await;
}

/// Settings under which a killed process is replaced soon.
const SHORT_LEASE: [(&str, &str); 2] = [
    ("lease.ttl", "3s"),
    ("sinks.events.publish_timeout", "900ms"),
];

/// What the successor may take after a kill: the lease, and two seconds.
const TAKEOVER: Duration = Duration::from_secs(5);

async fn killed_in_the_middle(standby: bool) {
    let bench = Bench::new(&SHORT_LEASE).await;
    let sent = bench.sent().await;
    let mut service = bench.process();
    let mut written = warm(&bench).await;
    let mut second = None;
    if standby {
        second = Some(bench.process());
        let instances = "select count(*) from outbox.instance";
        eventually(LONG, "the second one stands by", || async {
            let count = bench.number(instances).await;
            (count == 2).then_some(()).ok_or(format!("{count}"))
        })
        .await;
    }
    for round in 0..3 {
        // Enough that none of them is ever through before it is killed.
        written.extend(insert(&bench, 200, 50).await);
        let before = sent.count();
        sent.wait_for(before + 1_000).await;
        service.kill9();
        let killed = Instant::now();
        let cut = sent.count();
        service = match second.take() {
            Some(next) => next,
            None => bench.process(),
        };
        eventually(2 * TAKEOVER, "somebody goes on", || async {
            let now = sent.count();
            // What the broker still had of the killed one is not a sign of the next.
            let late = sent.since(killed + Duration::from_millis(500)) > 0;
            late.then_some(()).ok_or(format!("{cut} before, {now} now"))
        })
        .await;
        let took = killed.elapsed();
        println!("round {round}: the next one sent after {took:?}");
        assert!(took < TAKEOVER, "after {took:?}");
        if standby {
            second = Some(bench.process());
        }
    }
    let seen = bench.wait_for(written.len()).await;
    bench.emptied().await;
    assert_exactly(&written, &seen);
    assert!(seen.iter().all(|message| message.attempt == 1));
    let duplicates = sent.duplicates();
    println!("{} events, {duplicates} sent more than once", written.len());
    // In flight, one of each key, and settled by answer but not yet in the database, at each kill.
    assert!(duplicates <= 3 * 2_048, "{duplicates}");
    drop((service, second));
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_that_is_started_again_loses_nothing() {
    killed_in_the_middle(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_is_replaced_by_the_one_standing_by() {
    killed_in_the_middle(true).await;
}
