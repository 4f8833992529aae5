//! One route to several sinks: each has its own pace, and what stops one stops no other.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};

use super::bench::{Bench, Written, assert_exactly};
use crate::support::eventually;
use crate::support::process::Process;

/// What twenty thousand events through three sinks take on a busy machine, twice interrupted.
const LONG: Duration = Duration::from_secs(180);
const KEYS: usize = 500;
const EACH: usize = 40;

/// Two sinks that take everything and one whose stream is full from the start.
struct Three {
    bench: Bench,
    jetstream: async_nats::jetstream::Context,
    service: Process,
}

impl Three {
    async fn start() -> Self {
        let bench = Bench::new(&[]).await;
        let url = bench.nats.url();
        let mut settings = vec![
            (
                "routes.all.sinks".to_owned(),
                "events,second,third".to_owned(),
            ),
            ("lease.ttl".to_owned(), "4s".to_owned()),
        ];
        for (sink, stream) in [("second", "SECOND"), ("third", "THIRD")] {
            for (key, value) in [
                ("type", "nats"),
                ("url", &url),
                ("stream", stream),
                ("create_stream", "true"),
                ("subject", &format!("{sink}.{{kind}}")),
            ] {
                settings.push((format!("sinks.{sink}.{key}"), value.to_owned()));
            }
        }
        for sink in ["events", "second", "third"] {
            settings.push((format!("sinks.{sink}.publish_timeout"), "1500ms".to_owned()));
        }
        let settings: Vec<(&str, &str)> = settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let bench = bench.with(&settings);
        let jetstream = bench.nats.jetstream().await;
        jetstream.create_stream(third(1)).await.unwrap();
        let filler = jetstream.publish("third.filler", "".into()).await.unwrap();
        filler.await.unwrap();
        Self {
            service: bench.process(),
            bench,
            jetstream,
        }
    }

    async fn count(&self, stream: &str) -> u64 {
        match self.jetstream.get_stream(stream).await {
            Ok(stream) => stream.cached_info().state.messages,
            Err(_) => 0,
        }
    }

    async fn reaches(&self, stream: &str, count: u64) {
        eventually(LONG, "the stream holds the events", || async {
            let seen = self.count(stream).await;
            (seen >= count)
                .then_some(())
                .ok_or(format!("{seen} of {count} in {stream}"))
        })
        .await;
    }

    /// Kills the program without a word and starts it again.
    async fn kill(&mut self) {
        self.service.signal("KILL");
        self.service.wait_async(LONG).await;
        self.service = self.bench.process();
    }

    /// The third stream takes everything from now on.
    async fn heal(&self) {
        let stream = self.jetstream.get_stream("THIRD").await.unwrap();
        stream.purge().await.unwrap();
        self.jetstream.update_stream(third(-1)).await.unwrap();
    }
}

fn third(most: i64) -> Config {
    Config {
        name: "THIRD".to_owned(),
        subjects: vec!["third.>".to_owned()],
        allow_batch_publish: true,
        max_messages: most,
        discard: DiscardPolicy::New,
        ..Config::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_refuses_everything_costs_the_others_nothing_and_catches_up_in_order() {
    let mut three = Three::start().await;
    let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut written: Vec<Written> = Vec::new();
    for part in 1..=4 {
        written.extend(three.bench.insert(&keys, EACH / 4).await);
        // Killed twice in the middle of what was just written.
        three
            .reaches("EVENTS", (written.len() - 2_500) as u64)
            .await;
        if part % 2 == 0 {
            three.kill().await;
        }
    }
    let all = written.len() as u64;
    for stream in ["EVENTS", "SECOND"] {
        three.reaches(stream, all).await;
        assert_exactly(&written, &three.bench.seen_in(stream).await);
    }
    assert_eq!(three.count("THIRD").await, 1, "the filler alone");
    // Known to be there: what the live sinks have is written beside the event.
    eventually(LONG, "both sinks are done with every event", || async {
        let done = three
            .bench
            .number("select count(*) from outbox.delivery where state <> 'retry'")
            .await;
        (done == 2 * all as i64)
            .then_some(())
            .ok_or(format!("{done} marks"))
    })
    .await;
    let sent = three.bench.sent().await;

    three.heal().await;
    three.reaches("THIRD", all).await;
    three.bench.emptied().await;
    let caught_up = three.bench.seen_in("THIRD").await;
    assert_exactly(&written, &caught_up);
    assert!(
        caught_up.iter().all(|message| message.attempt == 1),
        "a full stream is no event's fault"
    );
    assert_eq!(
        sent.count(),
        0,
        "nothing is sent again to those who have it"
    );
    let discarded = three
        .bench
        .number("select count(*) from outbox.discarded")
        .await;
    assert_eq!(discarded, 0);
    three.bench.verified().await;
}
