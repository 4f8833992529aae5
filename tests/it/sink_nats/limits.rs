//! What a server or a stream does not take, and whose fault it is.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use outboxd::event::Payload;
use outboxd::sink::nats::{Nats, Options};
use outboxd::sink::{PublishError, PublishErrorKind, Sink};
use outboxd::testing::sink::{Arrived, delivery, delivery_of};

use super::bench::{
    PERMISSIONS, SOON, UNAVAILABLE, admin, arrived, as_user, config, create, kind, open, options,
    rejected,
};
use crate::support::nats;

#[tokio::test]
async fn a_full_stream_is_waited_for() {
    let server = nats::Server::start().await;
    let stream = create(
        &server,
        Config {
            max_messages: 3,
            discard: DiscardPolicy::New,
            ..config()
        },
    )
    .await;
    let session = open(server.url()).await;
    for seq in 1..=3 {
        session.publish(&delivery(seq), SOON).await.unwrap();
    }
    for seq in 4..=6 {
        assert_eq!(
            kind(session.publish(&delivery(seq), SOON).await),
            PublishErrorKind::Full
        );
    }
    stream.purge().await.unwrap();
    session.publish(&delivery(4), SOON).await.unwrap();
}

#[tokio::test]
async fn a_deleted_stream_is_waited_for_on_the_same_session() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let session = open(server.url()).await;
    session.publish(&delivery(1), SOON).await.unwrap();
    server.jetstream().await.delete_stream("EVT").await.unwrap();
    let error = session.publish(&delivery(2), SOON).await.unwrap_err();
    assert_eq!(error.kind, UNAVAILABLE);
    assert!(error.message.contains("evt.conformance.event"), "{error}");
    create(&server, config()).await;
    session.publish(&delivery(2), SOON).await.unwrap();
}

#[tokio::test]
async fn an_event_never_goes_to_another_stream() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let other = create(
        &server,
        Config {
            name: "OTHER".to_owned(),
            subjects: vec!["other.>".to_owned()],
            ..Config::default()
        },
    )
    .await;
    let wrong = Options {
        subject: "other.{kind}".to_owned(),
        ..options(server.url())
    };
    let sink = Nats::new(wrong).unwrap();
    let session = sink.open().await.unwrap();
    assert_eq!(kind(session.publish(&delivery(1), SOON).await), UNAVAILABLE);
    assert_eq!(other.get_info().await.unwrap().state.messages, 0);
    let findings = sink.check(&["a.b".to_owned()]).await.unwrap();
    assert!(
        findings[0].contains("belongs to stream OTHER"),
        "{findings:?}"
    );
}

#[tokio::test]
async fn a_forbidden_subject_is_told_at_once_and_harms_no_other() {
    let server = nats::Server::start_with(PERMISSIONS).await;
    admin(&server).await.create_stream(config()).await.unwrap();
    let relay = Nats::new(as_user(&server, "relay", "p@ss/w?rd#%:&")).unwrap();
    let session = relay.open().await.unwrap();
    let secret = |seq| delivery_of(seq, |event| event.kind = "secret.key".to_owned());
    let events: Vec<_> = (1..=100)
        .map(|seq| {
            if seq % 2 == 0 {
                delivery(seq)
            } else {
                secret(seq)
            }
        })
        .collect();
    let before = std::time::Instant::now();
    let results = join_all(events.iter().map(|d| session.publish(d, SOON))).await;
    assert!(before.elapsed() < SOON / 2, "only the timeout told");
    for (result, delivery) in results.into_iter().zip(&events) {
        if delivery.event.seq % 2 == 0 {
            result.unwrap();
        } else {
            let error = result.unwrap_err();
            assert_eq!(error.kind, UNAVAILABLE);
            assert!(
                error.message.contains("may not publish to evt.secret.key"),
                "{error}"
            );
        }
    }
}

#[tokio::test]
async fn credentials_that_do_not_suffice_are_explained_without_showing_them() {
    let server = nats::Server::start_with(PERMISSIONS).await;
    admin(&server).await.create_stream(config()).await.unwrap();
    let error = |options: Options| async {
        let opened = Nats::new(options).unwrap().open().await;
        opened.err().unwrap().to_string()
    };
    let wrong = error(as_user(&server, "relay", "s3cret")).await;
    assert!(wrong.contains("refused the credentials"), "{wrong}");
    assert!(!wrong.contains("s3cret"));
    let none = error(options(server.url())).await;
    assert!(none.contains("refused the credentials"), "{none}");
    let deaf = error(as_user(&server, "deaf", "x")).await;
    assert!(deaf.contains("_INBOX.>"), "{deaf}");
    // The same password, percent-encoded in the URL.
    let url = server
        .url()
        .replace("nats://", "nats://relay:p%40ss%2Fw%3Frd%23%25%3A%26@");
    open(url).await;
}

#[tokio::test]
async fn a_password_file_is_read_again_for_each_connection() {
    let server = nats::Server::start_with(PERMISSIONS).await;
    admin(&server).await.create_stream(config()).await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "old\n").unwrap();
    let sink = Nats::new(Options {
        user: Some("relay".to_owned()),
        password_file: Some(file.path().to_owned()),
        ..options(server.url())
    })
    .unwrap();
    assert!(sink.open().await.is_err());
    std::fs::write(file.path(), "p@ss/w?rd#%:&\n").unwrap();
    let session = sink.open().await.unwrap();
    session.publish(&delivery(1), SOON).await.unwrap();
}

#[tokio::test]
async fn the_largest_message_is_taken_and_one_byte_more_is_not_sent() {
    const MAX: usize = 65_536;
    let server = nats::Server::start_with(&format!("max_payload: {MAX}")).await;
    create(&server, config()).await;
    let session = open(server.url()).await;
    let sized = |bytes: usize| {
        delivery_of(bytes as i64, |event| {
            event.headers = r#"{"x-trace":"0123456789"}"#.to_owned();
            event.payload = Payload::Bytes(Bytes::from(vec![b'x'; bytes]));
        })
    };
    // How much the headers take is in the words of the refusal.
    let error = session.publish(&sized(MAX), SOON).await.unwrap_err();
    assert_eq!(error.kind, rejected("too_large"));
    let total: usize = error
        .message
        .split_whitespace()
        .find_map(|word| word.parse().ok())
        .unwrap();
    let fits = MAX - (total - MAX);
    let (largest, larger, normal) = (sized(fits), sized(fits + 1), delivery(1));
    let (a, b, c) = tokio::join!(
        session.publish(&largest, SOON),
        session.publish(&larger, SOON),
        session.publish(&normal, SOON)
    );
    a.unwrap();
    assert_eq!(kind(b), rejected("too_large"));
    c.unwrap();
    assert!(!server.log().contains("Maximum Payload"));
}

#[tokio::test]
async fn the_streams_own_limits_are_the_servers_to_judge() {
    let server = nats::Server::start().await;
    let stream = create(
        &server,
        Config {
            max_message_size: 2_000,
            ..config()
        },
    )
    .await;
    let session = open(server.url()).await;
    let big = delivery_of(1, |event| {
        event.payload = Payload::Bytes(Bytes::from(vec![b'x'; 3_000]));
    });
    let wide = delivery_of(2, |event| {
        event.headers = format!("{{\"x\":\"{}\"}}", "v".repeat(66_000));
    });
    let results = join_all([&big, &wide].map(|d| session.publish(d, SOON))).await;
    assert!(
        results
            .into_iter()
            .all(|result| kind(result) == rejected("too_large"))
    );
    session.publish(&delivery(3), SOON).await.unwrap();
    // A limit that was raised counts at once, without a new session.
    let raised = Config {
        max_message_size: 10_000,
        ..stream.cached_info().config.clone()
    };
    server
        .jetstream()
        .await
        .update_stream(raised)
        .await
        .unwrap();
    session.publish(&big, SOON).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_never_acknowledges_is_refused() {
    let server = nats::Server::start().await;
    create(
        &server,
        Config {
            no_ack: true,
            ..config()
        },
    )
    .await;
    let sink = Nats::new(options(server.url())).unwrap();
    let error = sink.open().await.err().unwrap().to_string();
    assert!(error.contains("no_ack"), "{error}");
    let findings = sink.check(&[]).await.unwrap();
    assert!(
        findings.iter().any(|f| f.contains("no_ack")),
        "{findings:?}"
    );
}

#[tokio::test]
async fn a_subscriber_sees_what_was_written() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let client = server.client().await;
    let mut seen = client.subscribe("evt.>").await.unwrap();
    client.flush().await.unwrap();
    let session = open(server.url()).await;
    let delivery = delivery_of(7, |event| {
        event.payload = Payload::Json(Bytes::from_static(b"{\"b\":1 ,\"a\":1.0,\"a\":1e2}\r\n"));
        event.headers = r#"{"x":"","X":"é: \"q\"","y":"a\tb"}"#.to_owned();
        event.ordering_key = Some("a/b %".into());
    });
    session.publish(&delivery, SOON).await.unwrap();
    let message = seen.next().await.unwrap();
    assert_eq!(message.subject.as_str(), "evt.conformance.event");
    let headers = message.headers.unwrap();
    assert_eq!(headers.get("Outbox-Key").unwrap().as_str(), "a%2Fb%20%25");
    assert_eq!(arrived(&headers, message.payload), Arrived::of(&delivery));
}

#[tokio::test]
async fn each_refusal_is_short_and_of_one_line() {
    let server = nats::Server::start().await;
    create(&server, config()).await;
    let session = open(server.url()).await;
    let long = "x\n".repeat(10_000);
    let rows = [
        delivery_of(1, |event| event.kind = long.clone()),
        delivery_of(2, |event| {
            event.headers = serde_json::json!({ "a": long.clone() }).to_string();
        }),
        delivery_of(3, |event| {
            event.headers = serde_json::json!({ long.clone(): "a" }).to_string();
        }),
        delivery_of(4, |event| event.content_type = Some(long.clone())),
    ];
    for row in &rows {
        let error: PublishError = session
            .publish(row, Duration::from_secs(1))
            .await
            .unwrap_err();
        assert!(
            error.message.len() < 600 && !error.message.contains('\n'),
            "{error}"
        );
    }
}
