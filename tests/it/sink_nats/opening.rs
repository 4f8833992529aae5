//! Opening and checking: what is found, created, refused and reported.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use outboxd::sink::Sink;
use outboxd::sink::nats::{Nats, Options};
use outboxd::testing::sink::delivery;

use super::bench::{SOON, config, create, options};
use crate::support::nats;

async fn refusal(options: Options) -> String {
    let opened = Nats::new(options).unwrap().open().await;
    opened.err().unwrap().to_string()
}

#[tokio::test]
async fn a_missing_stream_is_named_and_created_only_when_asked() {
    let server = nats::Server::start().await;
    let error = refusal(options(server.url())).await;
    assert!(error.contains("stream EVT does not exist"), "{error}");
    assert!(error.contains("create_stream = true"), "{error}");
    let create = || {
        Nats::new(Options {
            create_stream: true,
            ..options(server.url())
        })
        .unwrap()
    };
    assert!(
        create()
            .check(&["a.b".to_owned()])
            .await
            .unwrap()
            .is_empty()
    );
    let jetstream = server.jetstream().await;
    assert!(
        jetstream.get_stream("EVT").await.is_err(),
        "check created it"
    );
    // Several instances may be the first.
    let sinks: Vec<_> = (0..8).map(|_| create()).collect();
    let opened = futures_util::future::join_all(sinks.iter().map(|sink| sink.open())).await;
    for (seq, session) in (1..).zip(opened) {
        session
            .unwrap()
            .publish(&delivery(seq), SOON)
            .await
            .unwrap();
    }
    let stream = jetstream.get_stream("EVT").await.unwrap();
    let config = &stream.cached_info().config;
    assert_eq!(config.subjects, ["evt.>"]);
    assert!(config.allow_batch_publish);
    assert_eq!(stream.cached_info().state.messages, 8);
    assert!(
        create()
            .check(&["a.b".to_owned()])
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn servers_that_cannot_do_it_are_told_apart() {
    let nobody = refusal(options("nats://127.0.0.1:1")).await;
    assert!(
        nobody.contains("nats://127.0.0.1:1 cannot be connected to"),
        "{nobody}"
    );
    let name = refusal(options("nats://no-such-host.invalid")).await;
    assert!(name.contains("no-such-host.invalid"), "{name}");
    let server = nats::Server::start_with(
        "accounts { A: { users: [{user: a, password: b}] } }\nno_auth_user: a",
    )
    .await;
    let no_jetstream = refusal(options(server.url())).await;
    assert!(
        no_jetstream.to_lowercase().contains("jetstream"),
        "{no_jetstream}"
    );
    let plain = nats::Server::start().await;
    let tls = refusal(Options {
        tls: Some(true),
        ..options(plain.url())
    })
    .await;
    assert!(
        tls.contains("cannot be connected to") || tls.contains("TLS"),
        "{tls}"
    );
}

#[tokio::test]
async fn one_server_of_several_is_enough() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let url = format!("nats://127.0.0.1:1, {}", server.url());
    for _ in 0..4 {
        let sink = Nats::new(options(url.clone())).unwrap();
        let session = sink.open().await.unwrap();
        session.publish(&delivery(1), SOON).await.unwrap();
        session.close().await;
    }
}

#[tokio::test]
async fn check_reports_what_is_doubtful() {
    let server = nats::Server::start().await;
    create(
        &server,
        Config {
            subjects: vec!["evt.a.>".to_owned()],
            duplicate_window: Duration::from_secs(3),
            max_messages: 3,
            discard: DiscardPolicy::Old,
            retention: RetentionPolicy::Interest,
            ..config()
        },
    )
    .await;
    let sink = Nats::new(options(server.url())).unwrap();
    let kinds = ["a.b", "b", "a b"].map(str::to_owned);
    let findings = sink.check(&kinds).await.unwrap();
    for words in [
        "duplicate_window",
        "max_msgs = 3",
        "no consumer",
        "subject evt.b, which no stream takes",
        "white space",
    ] {
        let found = findings.iter().filter(|finding| finding.contains(words));
        assert_eq!(found.count(), 1, "{words}: {findings:?}");
    }
    assert_eq!(findings.len(), 5, "{findings:?}");
}
