//! Atomic batches (nats-server 2.12, streams with `allow_atomic`): all messages are stored in their order, or none is.
//!
//! Source: NATS ADR-50, "Atomic Batched Publishes"; tried against nats-server 2.15.1. A batch that holds a message id that
//! the stream knows already is refused as a whole.

use async_nats::{HeaderName, HeaderValue};

use super::inbox::Reply;
use super::session::{Message, NatsSession};
use super::time::Time;
use crate::sink::{PublishError, PublishErrorKind, Receipt};

/// Messages of one batch, at most: the server's own limit.
pub(super) const MESSAGES: usize = 1_000;
/// From so many messages on a batch is quicker than single publishes.
pub(super) const WORTHWHILE: usize = 100;

const BATCH_ID: &str = "Nats-Batch-Id";
const BATCH_SEQUENCE: &str = "Nats-Batch-Sequence";
const BATCH_COMMIT: &str = "Nats-Batch-Commit";

impl NatsSession {
    /// Publishes messages as one batch; `None`: it was refused, so nothing of it is stored.
    pub(super) async fn publish_atomic(
        &self,
        messages: &[Message],
        time: &Time,
    ) -> Option<Vec<Result<Receipt, PublishError>>> {
        let all = |error: &dyn Fn() -> PublishError| {
            Some(messages.iter().map(|_| Err(error())).collect::<Vec<_>>())
        };
        match self.send_atomic(messages, time).await {
            Ok(Some(Reply::Ack(ack))) if ack.error().is_none() => {
                let last = ack.place();
                self.saw_place(last);
                let count = messages.len() as u64;
                let place = |index: u64| (last >= count).then(|| last - count + 1 + index);
                let receipt = |index| Receipt {
                    stream: Some(self.stream().to_owned()),
                    position: place(index),
                    duplicate: false,
                };
                Some((0..count).map(receipt).map(Ok).collect())
            }
            Ok(Some(_)) => None,
            Ok(None) => all(&|| PublishError::unknown(self.why_lost())),
            Err(Failed::NotCommitted(error)) => match error.kind {
                // One of them is to blame.
                PublishErrorKind::Rejected { .. } => None,
                _ => {
                    let mut results = vec![Err(error)];
                    results.resize_with(messages.len(), || Err(PublishError::behind()));
                    Some(results)
                }
            },
            Err(Failed::NoAnswer) => all(&|| {
                PublishError::unknown(format!("no acknowledgement within {:?}", time.timeout))
            }),
        }
    }

    /// The answer to the last message, or to the first if that was refused.
    async fn send_atomic(
        &self,
        messages: &[Message],
        time: &Time,
    ) -> Result<Option<Reply>, Failed> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let last = messages.len().saturating_sub(1);
        for (index, message) in messages.iter().enumerate() {
            let mut message = message.clone();
            let headers = &mut message.headers;
            let mut add = |name, value: String| {
                headers.append(HeaderName::from_static(name), HeaderValue::from(value));
            };
            add(BATCH_ID, id.clone());
            add(BATCH_SEQUENCE, (index + 1).to_string());
            if index == last {
                add(BATCH_COMMIT, "1".to_owned());
            }
            if index != 0 && index != last {
                let sent = self.send_silently(message, time).await;
                sent.map_err(Failed::NotCommitted)?;
                continue;
            }
            let subject = message.subject.clone();
            let expected = if index == last {
                self.link().expect(subject)
            } else {
                self.link().expect_any(subject)
            };
            let mut expected = expected
                .map_err(|reason| Failed::NotCommitted(PublishError::connection_lost(reason)))?;
            let sent = self.send(message, expected.reply_to(), time).await;
            sent.map_err(Failed::NotCommitted)?;
            let reply = tokio::time::timeout_at(time.answer_by(), expected.reply()).await;
            match reply {
                Ok(reply) if index == last => return Ok(reply),
                // An empty answer to the first message: go on.
                Ok(Some(Reply::Body(body))) if body.is_empty() => {}
                Ok(Some(reply)) => return Ok(Some(reply)),
                Ok(None) => {
                    let lost = PublishError::connection_lost(self.why_lost());
                    return Err(Failed::NotCommitted(lost));
                }
                Err(_) if index == last => return Err(Failed::NoAnswer),
                Err(_) => {
                    let silent = PublishError::unavailable("the batch was not taken");
                    return Err(Failed::NotCommitted(silent));
                }
            }
        }
        Err(Failed::NoAnswer)
    }
}

/// An atomic batch without an answer.
enum Failed {
    /// Its last message was not sent, so nothing of it will be stored.
    NotCommitted(PublishError),
    /// Nobody knows.
    NoAnswer,
}
