//! Answers that real servers give once in a thousand hours.

use std::time::Duration;

use outboxd::sink::PublishErrorKind;
use outboxd::testing::sink::delivery;

use super::bench::{SOON, UNAVAILABLE, kind, open};
pub use crate::support::fake_nats::Server;

#[tokio::test]
async fn a_duplicate_without_a_sequence_is_repeated_until_a_real_one_comes() {
    let server = Server::start().await;
    server.answer(&[]);
    server.answer(&[r#"{"stream":"EVT","seq":0,"duplicate":true}"#]);
    server.answer(&[r#"{"stream":"EVT","seq":7}"#]);
    let session = open(server.url()).await;
    let short = Duration::from_millis(200);
    for _ in 0..2 {
        let result = session.publish(&delivery(1), short).await;
        assert_eq!(kind(result), PublishErrorKind::Unknown);
    }
    let receipt = session.publish(&delivery(1), SOON).await.unwrap();
    assert_eq!((receipt.position, receipt.duplicate), (Some(7), false));
    assert_eq!(server.published().len(), 3);
}

#[tokio::test]
async fn answers_of_bystanders_are_passed_over() {
    let server = Server::start().await;
    let session = open(server.url()).await;
    server.answer(&["pong", "{}", r#"{"stream":"EVT","seq":7}"#]);
    let receipt = session.publish(&delivery(1), SOON).await.unwrap();
    assert_eq!(receipt.position, Some(7));
    server.answer(&["pong"]);
    let error = session
        .publish(&delivery(2), Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(error.kind, UNAVAILABLE);
    assert!(error.message.contains("no stream"), "{error}");
}

#[tokio::test]
async fn an_acknowledgement_from_another_stream_does_not_count() {
    let server = Server::start().await;
    let session = open(server.url()).await;
    server.answer(&[r#"{"stream":"OTHER","seq":7}"#]);
    let error = session.publish(&delivery(1), SOON).await.unwrap_err();
    assert_eq!(error.kind, UNAVAILABLE);
    assert!(error.message.contains("OTHER"), "{error}");
}
