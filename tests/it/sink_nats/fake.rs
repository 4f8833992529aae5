//! Answers that real servers give once in a thousand hours.

use std::time::Duration;

use outboxd::sink::PublishErrorKind;
use outboxd::testing::sink::delivery;

use super::bench::{SOON, UNAVAILABLE, kind, open};
use super::lane::events;
pub use crate::support::fake_nats::{Published, Server};

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

/// The end of a reply subject of a fast-ingest batch: place of the message, and what it does (0 begins, 2 ends).
fn place_in_batch(published: &Published) -> Option<(u64, u64)> {
    let mut tokens = published.reply.strip_suffix(".$FI")?.rsplit('.');
    let operation = tokens.next()?.parse().ok()?;
    Some((tokens.next()?.parse().ok()?, operation))
}

#[tokio::test]
async fn a_message_that_a_batch_passed_over_and_never_stored_is_not_taken_for_stored() {
    let server = Server::start_with_batches().await;
    // The stream grows by one less than the batch has; asked for each, it knows the fourth, but not where it is.
    server.on(|published| {
        let answer = match place_in_batch(published) {
            Some((_, 0)) => r#"{"type":"ack","seq":1,"msgs":50}"#.to_owned(),
            Some((count, 2)) => {
                format!(r#"{{"stream":"EVT","seq":{},"count":{count}}}"#, count - 1)
            }
            Some(_) => return Some(Vec::new()),
            None if published.headers.contains("Outbox-Seq: 4\r\n") => {
                r#"{"stream":"EVT","seq":0,"duplicate":true}"#.to_owned()
            }
            None => r#"{"stream":"EVT","seq":9,"duplicate":true}"#.to_owned(),
        };
        Some(vec![answer])
    });
    let session = open(server.url()).await;
    assert_eq!(session.mode(), "lane");
    let results = session.publish_batch(&events(1, 20, 3), SOON, SOON).await;
    for (seq, result) in (1..).zip(results) {
        // What is behind it was stored perhaps, and waits for it.
        let in_doubt = seq >= 4 && seq % 3 == 4 % 3;
        match result {
            Ok(receipt) => {
                assert!(!in_doubt, "{seq}");
                assert!(!receipt.duplicate, "{seq} was stored by the batch");
            }
            Err(error) => {
                assert!(in_doubt, "{seq}");
                assert_eq!(error.kind, PublishErrorKind::Unknown);
            }
        }
    }
}
