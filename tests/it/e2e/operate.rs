//! Operators' commands against running instances: how soon they take effect, and what survives.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::ConnectOptions as _;
use tokio::time::Instant;

use super::bench::{Bench, LONG, STREAM, by_key};
use crate::cli_bin::Workplace;
use crate::support::eventually;
use crate::support::process::Process;

/// A command takes effect within this.
const SOON: Duration = Duration::from_secs(1);

/// Two instances, of which the first delivers.
async fn two_instances(bench: &Bench) -> (Process, Process) {
    let first = bench.process();
    bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    let second = bench.process();
    owners(bench, 2).await;
    (first, second)
}

/// Waits until so many instances share all the shards.
async fn owners(bench: &Bench, count: i64) {
    let owners = "select case when count(owner) = 16 then count(distinct owner) else 0 end from outbox.lease";
    eventually(LONG, "the shards are shared", || async {
        let owners = bench.number(owners).await;
        (owners == count).then_some(()).ok_or(owners.to_string())
    })
    .await;
}

/// What the audit holds, oldest first: operator, action, reason.
async fn audit(bench: &Bench) -> Vec<(String, String, Option<String>)> {
    sqlx::query_as("select operator, action, reason from outbox.audit order by id")
        .fetch_all(&mut bench.database.connect().await)
        .await
        .unwrap()
}

async fn says(service: &Process, what: &str) {
    eventually(LONG, "the program says it", || {
        let output = service.output();
        async move { output.contains(what).then_some(()).ok_or(output) }
    })
    .await;
}

/// Waits until it was said so many times: all instances of a place write one log.
async fn says_times(service: &Process, what: &str, times: usize) {
    eventually(LONG, "it is said so often", || {
        let output = service.output();
        async move {
            let count = output.matches(what).count();
            (count == times).then_some(()).ok_or(output)
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_within_a_second_through_a_takeover_until_it_is_resumed() {
    let bench = Bench::new(&[("lease.ttl", "5s"), ("sinks.events.publish_timeout", "1s")]).await;
    let (mut first, _second) = two_instances(&bench).await;
    let targets: [(&[&str], &[&str], &str); 4] = [
        (
            &["pause", "source", "orders"],
            &["resume", "source", "orders"],
            "the source is paused by tester",
        ),
        (
            &["pause", "sink", "events"],
            &["resume", "sink", "events"],
            "sink events is paused by tester",
        ),
        (
            &["pause", "route", "all"],
            &["resume", "route", "all"],
            "route all is paused by tester",
        ),
        (
            &["keys", "pause", "k"],
            &["keys", "resume", "k"],
            "key k is paused by tester",
        ),
    ];
    let mut stored = 1;
    for (pause, resume, words) in targets {
        // Both listen by now: the fallback poll is 30 s away.
        let mut reason = pause.to_vec();
        reason.extend(["--reason", "a test"]);
        let began = Instant::now();
        bench.outboxd(&reason).code(0);
        says_times(&first, words, 2).await;
        assert!(began.elapsed() < SOON, "{pause:?}: {:?}", began.elapsed());
        bench.insert(&["k"], 20).await;
        // What would be sent against the pause is sent within milliseconds.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(bench.count().await, stored, "{pause:?}");
        bench.outboxd(resume).code(0);
        stored += 20;
        bench.wait_within(SOON, stored as usize).await;
    }
    // The owner dies while the pause stands.
    bench.outboxd(targets[1].0).code(0);
    // By both of them, now as before.
    says_times(&first, targets[1].2, 4).await;
    bench.insert(&["k", "l"], 10).await;
    first.kill9();
    owners(&bench, 1).await;
    // What would be sent against the pause is sent within milliseconds.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        bench.count().await,
        stored,
        "the pause holds for the next owner"
    );
    let status = bench
        .outboxd(&["status", "--output", "json"])
        .code(0)
        .json();
    let paused = &status["databases"][0]["paused"][0];
    assert_eq!(
        (&paused["scope"], &paused["name"]),
        (&json!("sink"), &json!("events"))
    );
    let words = bench.outboxd(&["status"]).code(0);
    assert!(
        words
            .stdout
            .contains("orders: sink events is paused by tester since "),
        "{words:?}"
    );
    bench.outboxd(targets[1].1).code(0);
    let seen = bench.wait_within(SOON, stored as usize + 20).await;
    for (key, seqs) in by_key(&seen) {
        assert!(seqs.is_sorted(), "{key}: {seqs:?}");
    }
    assert_eq!(seen.len() as u64, stored + 20, "each once");
    bench.emptied().await;
    let audit = audit(&bench).await;
    assert_eq!(audit.len(), 10);
    assert_eq!(
        audit[0],
        (
            "tester".to_owned(),
            "pause".to_owned(),
            Some("a test".to_owned())
        )
    );
    assert_eq!(audit[1], ("tester".to_owned(), "resume".to_owned(), None));
    let none = bench.number("select count(*) from outbox.discarded").await;
    assert_eq!(none, 0);
    bench.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_wakes_a_quiet_database() {
    let bench = Bench::new(&[("databases.orders.quiet_after", "1s")]).await;
    let service = bench.process();
    bench.insert(&["warm"], 1).await;
    bench.wait_for(1).await;
    says(&service, "database is quiet").await;
    bench.outboxd(&["keys", "pause", "k"]).code(0);
    says(&service, "key k is paused by tester").await;
    bench.insert(&["k", "l"], 1).await;
    bench.wait_for(2).await;
    let quiet = || service.output().matches("database is quiet").count();
    let before = quiet();
    eventually(LONG, "it is quiet again, with a paused key", || async {
        let times = quiet();
        (times > before).then_some(()).ok_or(times.to_string())
    })
    .await;
    bench.outboxd(&["keys", "resume", "k"]).code(0);
    bench.wait_within(SOON, 3).await;
    bench.emptied().await;
    bench.verified().await;
}

/// A stream that refuses large messages of other kinds than the rest as long as it is told to.
async fn refusing(bench: &Bench) -> async_nats::jetstream::Context {
    let context = bench.nats.jetstream().await;
    let config = async_nats::jetstream::stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["events.order.made".to_owned()],
        allow_batch_publish: true,
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    context
}

fn state(bench: &Bench, key: &str) -> Value {
    let shown = bench
        .outboxd(&["keys", "show", key, "--output", "json"])
        .code(0)
        .json();
    shown["sinks"][0].clone()
}

/// Waits until the key is shown so.
async fn stands(bench: &Bench, key: &str, expected: &str) -> Value {
    eventually(LONG, "the key stands so", || async {
        let shown = state(bench, key);
        match shown["state"] == expected {
            true => Ok(shown),
            false => Err(shown.to_string()),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_key_is_shown_freed_blocked_again_and_its_head_skipped() {
    let bench = Bench::new(&[
        ("retry.max_attempts", "1"),
        ("routes.all.on_exhausted", "block"),
    ])
    .await;
    let _context = refusing(&bench).await;
    let service = bench.process();
    bench
        .database
        .execute(
            "insert into outbox.event (kind, ordering_key, payload) values ('order.lost', 'it''s \"odd\"', '{}')",
        )
        .await;
    let key = "it's \"odd\"";
    let written = bench.insert(&[key], 3).await;
    // The failure is the event's own while others succeed.
    let flow = async {
        loop {
            bench.insert(&["other"], 1).await;
            // The pace of an application.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let blocked = async {
        let shown = stands(&bench, key, "blocked").await;
        assert_eq!(shown["behind"], 3);
        assert_eq!(shown["head"]["kind"], "order.lost");
        assert_eq!(shown["head"]["attempts"], 1);
        assert_eq!(shown["route"], "all");
        shown
    };
    let first = tokio::select! { () = flow => unreachable!(), first = blocked => first };
    let list = bench
        .outboxd(&["keys", "list", "--output", "json"])
        .code(0)
        .json();
    assert_eq!(
        (&list[0]["state"], &list[0]["key"]),
        (&json!("blocked"), &json!(key))
    );
    let words = bench.outboxd(&["keys", "show", key]).code(0);
    assert!(words.stdout.contains("its budget is spent"), "{words:?}");
    let words = bench.outboxd(&["keys", "list"]).code(0);
    assert!(
        words.stdout.contains("--encoded it%27s%20%22odd%22"),
        "{words:?}"
    );

    // Freed, it fails again, and is blocked again.
    let failed_at = first["head"]["failed_at"].clone();
    let ended = bench
        .outboxd(&[
            "keys",
            "resume",
            "--encoded",
            "it%27s%20%22odd%22",
            "--output",
            "json",
        ])
        .code(0);
    assert_eq!(ended.json()["retried"], 1);
    let again = async {
        eventually(LONG, "it failed again", || async {
            let shown = state(&bench, key);
            let other = shown["state"] == "blocked" && shown["head"]["failed_at"] != failed_at;
            other.then_some(()).ok_or(shown.to_string())
        })
        .await;
    };
    let flow = async {
        loop {
            bench.insert(&["other"], 1).await;
            // The pace of an application.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! { () = flow => unreachable!(), () = again => {} }

    let seq = again_seq(&bench, key);
    let stale = bench
        .outboxd(&["keys", "skip", key, "--head", &(seq + 1).to_string()])
        .code(1);
    assert!(stale.stderr.contains("nothing was changed"), "{stale:?}");
    let began = Instant::now();
    let skipped = bench
        .outboxd(&[
            "keys",
            "skip",
            key,
            "--reason",
            "lost for good",
            "--output",
            "json",
        ])
        .code(0)
        .json();
    assert_eq!(skipped["events"][0]["done"], true, "{skipped}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    eventually(SOON, "the key moves on", || async {
        let seen = bench.seen().await;
        let seqs: Vec<i64> = written.iter().map(|event| event.seq).collect();
        let keys = by_key(&seen);
        let got = keys.get("it%27s%20%22odd%22").cloned().unwrap_or_default();
        (got == seqs).then_some(()).ok_or(format!("{got:?}"))
    })
    .await;
    let (reason, error): (String, String) =
        sqlx::query_as("select reason, last_error from outbox.discarded")
            .fetch_one(&mut bench.database.connect().await)
            .await
            .unwrap();
    assert_eq!(reason, "operator");
    assert_eq!(error, "skipped by tester: lost for good");
    let actions: Vec<String> = audit(&bench).await.into_iter().map(|row| row.1).collect();
    assert_eq!(actions, ["retry", "skip"]);
    drop(service);
    bench.verified().await;
}

fn again_seq(bench: &Bench, key: &str) -> i64 {
    state(bench, key)["head"]["seq"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_pauses_hold_for_the_owner_and_for_whoever_takes_over() {
    let place = Workplace::sqlite_to_file("");
    place.outboxd(&["migrate"]).code(0);
    let publish = |key: &str, n: u32| {
        let payload = n.to_string();
        place
            .outboxd(&["publish", "order.made", "--key", key, "--payload", &payload])
            .code(0);
    };
    let lines = |count: usize, limit: Duration| {
        let place = &place;
        async move {
            eventually(limit, "lines are written", || async {
                let seen = place.lines("events.jsonl").len();
                (seen == count).then_some(()).ok_or(seen.to_string())
            })
            .await;
        }
    };
    let mut first = place.start(&["run"]);
    publish("warm", 0);
    lines(1, LONG).await;
    let began = Instant::now();
    place
        .outboxd(&["pause", "route", "all", "--reason", "a test"])
        .code(0);
    says(&first, "route all is paused by tester").await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    for n in 1..=3 {
        publish("k", n);
    }
    place.outboxd(&["keys", "pause", "l"]).code(0);
    publish("l", 1);
    // What would be sent against the pause is sent within milliseconds.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(place.lines("events.jsonl").len(), 1);
    first.kill9();
    let second = place.start(&["run"]);
    says_times(&second, "database is relayed by this instance", 2).await;
    let skipped = place
        .outboxd(&["keys", "skip", "k", "--output", "json"])
        .code(0)
        .json();
    assert_eq!(skipped["events"][0]["done"], true, "{skipped}");
    assert_eq!(place.lines("events.jsonl").len(), 1);
    place.outboxd(&["resume", "route", "all"]).code(0);
    lines(3, SOON).await;
    place.outboxd(&["keys", "resume", "l"]).code(0);
    lines(4, SOON).await;
    let payloads: Vec<Value> = place
        .lines("events.jsonl")
        .iter()
        .map(|line| line["payload"].clone())
        .collect();
    assert_eq!(payloads, ["0", "2", "3", "1"]);
    let path = place.path("orders.db").display().to_string();
    let mut connection = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(path)
        .connect()
        .await
        .unwrap();
    let actions: Vec<(String, String)> =
        sqlx::query_as("SELECT actor, action FROM outbox_audit ORDER BY number")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    let words: Vec<&str> = actions.iter().map(|(_, action)| &**action).collect();
    assert_eq!(words, ["pause", "pause", "skip", "resume", "resume"]);
    assert!(actions.iter().all(|(actor, _)| actor == "tester"));
}

/// C07: set-aside events of a key come back in their order, and what they overtake is told before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c07_set_aside_events_come_back_in_their_order_and_tell_what_they_overtake() {
    let bench = Bench::new(&[]).await;
    let config = |max_message_size| async_nats::jetstream::stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["events.>".to_owned()],
        allow_batch_publish: true,
        max_message_size,
        ..Default::default()
    };
    let context = bench.nats.jetstream().await;
    context.create_stream(config(1_000)).await.unwrap();
    bench
        .database
        .execute(
            "insert into outbox.event (kind, ordering_key, payload)
             select 'order.made', 'k', json_build_object('pad', repeat('x', 2000)) from generate_series(1, 30)",
        )
        .await;
    bench.insert(&["k"], 1).await;
    let service = bench.process();
    bench.wait_for(1).await;
    bench.emptied().await;
    context.update_stream(config(-1)).await.unwrap();
    let args = ["discarded", "requeue", "--code", "too_large", "--all"];
    let refused = bench.outboxd(&args).code(1);
    assert!(refused.stderr.contains("--force"), "{refused:?}");
    let left = "select count(*) from outbox.discarded";
    assert_eq!(bench.number(left).await, 30, "nothing was put back");
    let ended = bench.outboxd(&[&args[..], &["--force"]].concat()).code(0);
    assert_eq!(ended.stdout, "30 put back\n");
    assert!(
        ended.stderr.contains(
            "30 of them come behind later events of their key that their sink has already"
        ),
        "{ended:?}"
    );
    let seen = bench.wait_for(31).await;
    let mut expected = vec![31];
    expected.extend(1..=30);
    assert_eq!(by_key(&seen)["k"], expected);
    drop(service);
    bench.verified().await;
}

/// C43: a delayed head holds its key back; that shows, and an operator can skip it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c43_a_delayed_head_is_named_with_its_time_and_can_be_skipped() {
    let bench = Bench::new(&[]).await;
    bench
        .database
        .execute(
            "insert into outbox.event (kind, ordering_key, payload, available_at)
             values ('order.late', 'k', '{}', now() + interval '1 hour')",
        )
        .await;
    bench.insert(&["k"], 2).await;
    bench.insert(&["other"], 1).await;
    let service = bench.process();
    bench.wait_for(1).await;
    let shown = state(&bench, "k");
    assert_eq!(
        (&shown["state"], &shown["behind"]),
        (&json!("delayed"), &json!(2))
    );
    assert_eq!(shown["head"]["kind"], "order.late");
    assert!(
        shown["head"]["due_at"].as_str().unwrap().ends_with('Z'),
        "{shown}"
    );
    let skipped = bench.outboxd(&["keys", "skip", "k"]).code(0);
    assert!(
        skipped.stdout.starts_with("skipped: sink events, seq 1, "),
        "{skipped:?}"
    );
    let seen = bench.wait_within(SOON, 3).await;
    assert_eq!(by_key(&seen)["k"], [2, 3]);
    drop(service);
    bench.verified().await;
}
