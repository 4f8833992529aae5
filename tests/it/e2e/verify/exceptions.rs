//! What looks wrong and is not, and what nobody can know.

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};

use super::*;

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["events.>".to_owned()],
        allow_batch_publish: true,
        ..Config::default()
    };
    change(&mut config);
    config
}

async fn on(change: impl FnOnce(&mut Config)) -> Bench {
    let bench = Bench::new(&[]).await;
    let context = bench.nats.jetstream().await;
    context.create_stream(config(change)).await.unwrap();
    bench
}

/// A requeue behind later events of its key is the stated exception to their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requeued_events_are_counted_apart() {
    let bench = on(|config| config.max_message_size = 1_000).await;
    bench
        .database
        .execute(
            "insert into outbox.event (kind, ordering_key, payload)
             select 'order.made', 'k', json_build_object('pad', repeat('x', 2000)) from generate_series(1, 3)",
        )
        .await;
    bench.insert(&["k"], 2).await;
    deliver(&bench).await;
    let context = bench.nats.jetstream().await;
    context.update_stream(config(|_| ())).await.unwrap();
    let requeue = ["discarded", "requeue", "--all", "--force"];
    bench.outboxd(&requeue).code(0);
    deliver(&bench).await;
    let found = feed(&verify(&bench, &["--output", "json"]).code(0));
    assert_eq!((&found["held"], &found["requeued"]), (&5.into(), &3.into()));
    assert_eq!(counts(&found), [0; 4]);
}

/// What was set aside and is in the stream all the same was sent before; dropping it leaves no row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_aside_and_dropped_events_that_were_stored_are_not_judged() {
    let bench = on(|_| ()).await;
    let written = bench.insert(&["k", "l"], 2).await;
    for event in &written {
        send(&bench, &event.id.to_string(), event.seq, &event.key).await;
    }
    bench.outboxd(&["keys", "skip", "k"]).code(0);
    bench.outboxd(&["keys", "skip", "l"]).code(0);
    deliver(&bench).await;
    bench
        .outboxd(&["discarded", "drop", "--key", "k", "--all"])
        .code(0);
    let found = feed(&verify(&bench, &["--output", "json"]).code(0));
    assert_eq!(
        (&found["discarded"], &found["unjudged"]),
        (&1.into(), &2.into())
    );
    assert_eq!(counts(&found), [0; 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_stream_let_go_is_aged_out() {
    let bench = on(|config| {
        config.max_messages = 10;
        config.discard = DiscardPolicy::Old;
    })
    .await;
    bench.insert(&["a", "b"], 15).await;
    deliver(&bench).await;
    let found = feed(&verify(&bench, &["--output", "json"]).code(0));
    let numbers = ["delivered", "held", "aged_out"].map(|name| found[name].as_u64().unwrap());
    assert_eq!(numbers, [30, 10, 20], "{found}");
    // One that is gone from the middle is no matter of limits.
    stream(&bench).await.delete_message(25).await.unwrap();
    let (found, _) = wrong(&bench);
    assert_eq!(counts(&found), [1, 0, 0, 0], "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_keeps_a_few_of_each_subject_cannot_tell_what_it_lost() {
    let bench = on(|config| config.max_messages_per_subject = 5).await;
    bench.insert(&["a", "b"], 15).await;
    deliver(&bench).await;
    let ended = verify(&bench, &[]).code(0);
    let words = "missing: not checked: stream EVENTS: it keeps so many messages of a subject only";
    assert!(ended.stderr.contains(words), "{ended:?}");
    assert!(ended.stdout.contains("not checked"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_work_queue_is_left_alone() {
    let bench = on(|config| config.retention = RetentionPolicy::WorkQueue).await;
    bench.insert(&["a", "b"], 15).await;
    deliver(&bench).await;
    let stream = stream(&bench).await;
    let worker = pull::Config {
        durable_name: Some("worker".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ..Default::default()
    };
    stream.create_consumer(worker).await.unwrap();
    let ended = verify(&bench, &["--output", "json"]).code(0);
    let found = feed(&ended);
    assert_eq!(
        (&found["read_back"], &found["delivered"]),
        (&false.into(), &30.into())
    );
    let remark = found["remarks"][0].as_str().unwrap();
    assert!(
        remark.ends_with("cannot be read back; only the database was checked"),
        "{found}"
    );
    assert!(found["missing"]["not_checked"].is_string(), "{found}");
    assert_eq!(bench.count().await, 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_receipts_it_is_said_what_was_not_checked() {
    let bench = Bench::new(&[("retention.published_keep", "none")]).await;
    bench.insert(&["a"], 5).await;
    deliver(&bench).await;
    send(&bench, &uuid::Uuid::now_v7().to_string(), 99, "a").await;
    let ended = verify(&bench, &[]).code(0);
    let words = "without a row: not checked: retention.published_keep is none";
    assert!(ended.stderr.contains(words), "{ended:?}");
    let found = feed(&verify(&bench, &["--output", "json"]).code(0));
    let why = found["without_row"]["not_checked"].as_str().unwrap();
    assert!(why.contains("does not remember"), "{found}");
    // Order needs no receipts.
    let context = bench.nats.jetstream().await;
    let written = bench.insert(&["z"], 2).await;
    drop(context);
    for event in written.iter().rev() {
        send(&bench, &event.id.to_string(), event.seq, "z").await;
    }
    let (found, _) = wrong(&bench);
    assert_eq!(counts(&found), [0, 0, 0, 1], "{found}");
}

/// A sink of another name, or another stream, got them: its receipts say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_of_a_stream_that_was_configured_before_are_counted_apart() {
    let (bench, _) = delivered(&["a"], 5).await;
    let bench = bench.with(&[
        ("sinks.events.stream", "OTHER"),
        ("sinks.events.subject", "other.{kind}"),
    ]);
    let found = feed(&verify(&bench, &["--output", "json"]).code(0));
    assert_eq!(
        (&found["elsewhere"], &found["held"]),
        (&5.into(), &0.into())
    );
}
