//! What an audit of many events takes: time and memory.

use std::time::Instant;

use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::stream::Config;
use futures_util::future::join_all;

use super::*;
use crate::support::eventually;

const EVENTS: u64 = 500_000;

fn id(n: u64) -> String {
    format!("00000000-0000-7000-8000-{n:012x}")
}

/// Receipts by SQL, and their messages, as a relay would have left them.
async fn filled() -> Bench {
    let bench = Bench::new(&[]).await;
    let write = format!(
        "insert into outbox.published (seq, id, sink, attempts, stream, position, kind, ordering_key)
         select n, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'events', 0, '{STREAM}', n,
                'order.made', 'k' || n % 1000
         from generate_series(1, {EVENTS}) as n"
    );
    bench.database.execute(&write).await;
    let context = bench.nats.jetstream().await;
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["events.>".to_owned()],
        ..Config::default()
    };
    context.create_stream(config).await.unwrap();
    let payload = bytes::Bytes::from(vec![b'x'; 1_024]);
    for first in (1..=EVENTS).step_by(2_000) {
        let mut acks: Vec<PublishAckFuture> = Vec::new();
        for n in first..first + 2_000 {
            let headers = headers(&id(n), n as i64, &format!("k{}", n % 1_000));
            let sent = context.publish_with_headers("events.order.made", headers, payload.clone());
            acks.push(sent.await.unwrap());
        }
        let acks = join_all(acks.into_iter().map(IntoFuture::into_future)).await;
        assert!(acks.into_iter().all(|ack| !ack.unwrap().duplicate));
    }
    bench
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement; OUTBOXD_TEST_PROGRAM names a build with optimisation"]
async fn half_a_million_events() {
    let bench = filled().await;
    let began = Instant::now();
    let mut audit = match std::env::var("OUTBOXD_TEST_PROGRAM") {
        Ok(program) => bench
            .place
            .start_program(&program, &["verify", "--since", "1h"]),
        Err(_) => bench.place.start(&["verify", "--since", "1h"]),
    };
    let status = format!("/proc/{}/status", audit.id());
    let mut peak = String::new();
    eventually(LONG, "the audit ends", || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| line.starts_with("VmHWM")) {
            line.clone_into(&mut peak);
        }
        let ended = audit.exited().is_some();
        async move { ended.then_some(()).ok_or("it runs".to_owned()) }
    })
    .await;
    println!(
        "{EVENTS} events of 1 KiB in {:.1?}, {peak}",
        began.elapsed()
    );
    assert!(
        audit.output().contains("everything fits"),
        "{}",
        audit.output()
    );
}
