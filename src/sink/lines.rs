//! Events as JSON lines, and the thread that writes them in groups: what the sinks `file` and `stdout` share.
//!
//! Publishes hand their line to one thread, which takes all that wait, writes them with one call, makes
//! them durable once, and only then answers each. Lines stand in the order in which the publishes
//! were first polled.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::behind::Behind;
use super::lost::Lost;
use super::{Delivery, Lanes, PublishError, Receipt, Session, SinkError};
use crate::envelope;
use crate::event::Payload;

/// A group is closed when it has this many bytes.
const GROUP_BYTES: usize = 4 << 20;

/// Where groups of lines go.
pub(super) trait Destination: Send + 'static {
    /// Writes `group`, which is whole lines, and returns when it is as durable as the destination can make it:
    /// the position of the group's first byte, if the destination has positions.
    fn write(&mut self, group: &[u8]) -> Result<Option<u64>, Failure>;
}

/// A group that was not written as a whole; the session ends with it.
pub(super) struct Failure {
    pub(super) message: String,
    /// Some of its lines may stand in the destination.
    pub(super) perhaps_written: bool,
}

/// One JSON line with its line end.
///
/// The fields in this order: `source`, `seq`, `id`, `kind`, `ordering_key` (or null), `content_type` (or
/// null), `headers` (the object as stored), `occurred_at`, `attempt`, and `payload` (JSON text as a JSON
/// string, so that not one byte of it is lost) or `payload_base64`.
///
/// # Errors
/// Rejected as `invalid_header`, by the same rules as for every sink.
fn line(delivery: &Delivery) -> Result<String, PublishError> {
    #[derive(Serialize)]
    struct Line<'a> {
        source: &'a str,
        seq: i64,
        id: String,
        kind: &'a str,
        ordering_key: Option<&'a str>,
        content_type: Option<&'a str>,
        headers: &'a RawValue,
        occurred_at: String,
        attempt: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload_base64: Option<String>,
    }
    let event = &*delivery.event;
    let row = envelope::headers::row(&event.headers)?;
    envelope::headers::check_content_type(event, &row)?;
    let impossible = |error: serde_json::Error| {
        PublishError::rejected(
            envelope::INVALID_HEADER,
            format!("the event makes no JSON line: {error}"),
        )
    };
    let headers = on_one_line(&event.headers);
    let headers: &RawValue = serde_json::from_str(&headers).map_err(impossible)?;
    let text = match &event.payload {
        // JSON text that is not UTF-8 is carried as bytes rather than lost.
        Payload::Json(json) => std::str::from_utf8(json).ok(),
        Payload::Bytes(_) => None,
    };
    let line = Line {
        source: &delivery.source,
        seq: event.seq,
        id: event.id.to_string(),
        kind: &event.kind,
        ordering_key: event.ordering_key.as_deref(),
        content_type: event.content_type.as_deref(),
        headers,
        occurred_at: event.occurred_at.to_string(),
        attempt: delivery.attempt,
        payload: text,
        payload_base64: text
            .is_none()
            .then(|| STANDARD.encode(event.payload.as_bytes())),
    };
    let mut line = serde_json::to_string(&line).map_err(impossible)?;
    // Writing to a String cannot fail.
    let _ = line.write_char('\n');
    Ok(line)
}

/// Valid JSON holds line ends only between its tokens, where a space says the same.
fn on_one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

/// A line that waits to be written.
struct Waiting {
    line: String,
    answer: oneshot::Sender<Result<Receipt, PublishError>>,
}

/// A session over a [`Destination`].
pub(super) struct Lines {
    /// Unbounded, because a publisher's permits bound what is in flight.
    queue: std::sync::Mutex<Option<Sender<Waiting>>>,
    lost: Arc<Lost>,
    /// Closed when the thread has ended.
    ended: tokio::sync::watch::Receiver<()>,
}

impl Lines {
    /// Starts the thread. `container` is what receipts name.
    pub(super) fn start(
        destination: impl Destination,
        container: String,
    ) -> Result<Self, SinkError> {
        let (queue, waiting) = mpsc::channel();
        let (running, ended) = tokio::sync::watch::channel(());
        let lost = Arc::new(Lost::new());
        let writer = Writer {
            destination,
            container,
            lost: Arc::clone(&lost),
        };
        std::thread::Builder::new()
            .name("outboxd-lines".to_owned())
            .spawn(move || {
                let _running = running;
                let _end = EndOnDrop(Arc::clone(&writer.lost));
                writer.run(&waiting);
            })
            .map_err(|error| SinkError {
                message: format!("no thread to write with: {error}"),
                source: Some(Box::new(error)),
            })?;
        Ok(Self {
            queue: std::sync::Mutex::new(Some(queue)),
            lost,
            ended,
        })
    }

    fn hand_over(&self, waiting: Waiting) -> Result<(), PublishError> {
        let queue = self
            .queue
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let gone = || {
            let reason = self.lost.reason();
            PublishError::connection_lost(reason.unwrap_or_else(|| "the session ended".to_owned()))
        };
        if self.lost.reason().is_some() {
            return Err(gone());
        }
        let queue = queue.as_ref().ok_or_else(gone)?;
        queue.send(waiting).map_err(|_| gone())
    }
}

#[async_trait]
impl Session for Lines {
    /// Cancel-safe in this sense: a line whose future was dropped before its group was begun is not written.
    async fn publish(
        &self,
        delivery: &Delivery,
        timeout: Duration,
    ) -> Result<Receipt, PublishError> {
        let (answer, answered) = oneshot::channel();
        let line = line(delivery)?;
        self.hand_over(Waiting { line, answer })?;
        answer_by(tokio::time::Instant::now() + timeout, timeout, answered).await
    }

    /// Lines are written in the order of their events, and a group that is not written ends the session.
    fn lanes(&self) -> Option<Lanes> {
        Some(Lanes {
            count: 1,
            events: 2_048,
            bytes: GROUP_BYTES,
        })
    }

    fn mode(&self) -> &'static str {
        "lane"
    }

    async fn publish_batch(
        &self,
        batch: &[Delivery],
        timeout: Duration,
        _limit: Duration,
    ) -> Vec<Result<Receipt, PublishError>> {
        let deadline = tokio::time::Instant::now() + timeout;
        let mut behind = Behind::default();
        let mut waiting = Vec::with_capacity(batch.len());
        for delivery in batch {
            let handed = behind.unless(&delivery.event, || {
                let (answer, answered) = oneshot::channel();
                let line = line(delivery)?;
                self.hand_over(Waiting { line, answer })?;
                Ok(answered)
            });
            waiting.push(handed);
        }
        let mut results = Vec::with_capacity(batch.len());
        for handed in waiting {
            results.push(match handed {
                Ok(answered) => answer_by(deadline, timeout, answered).await,
                Err(error) => Err(error),
            });
        }
        results
    }

    async fn lost(&self) -> String {
        self.lost.wait().await
    }

    /// Returns when the thread has ended: nothing is written afterwards.
    async fn close(&self) {
        self.lost.set("the session was closed");
        drop(
            self.queue
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .take(),
        );
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}

/// Waits for the writer's answer until `deadline`, which is `timeout` after the hand-over.
async fn answer_by(
    deadline: tokio::time::Instant,
    timeout: Duration,
    answered: oneshot::Receiver<Result<Receipt, PublishError>>,
) -> Result<Receipt, PublishError> {
    match tokio::time::timeout_at(deadline, answered).await {
        Ok(Ok(result)) => result,
        // The thread ended between taking the line and answering.
        Ok(Err(_)) => Err(PublishError::unknown("the writer ended before it answered")),
        Err(_) => Err(PublishError::unknown(format!(
            "not written within {timeout:?}"
        ))),
    }
}

/// A thread that dies in whatever way takes its session with it.
struct EndOnDrop(Arc<Lost>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.set("the writer ended");
    }
}

struct Writer<D> {
    destination: D,
    container: String,
    lost: Arc<Lost>,
}

impl<D: Destination> Writer<D> {
    fn run(mut self, queue: &Receiver<Waiting>) {
        let mut group = Vec::new();
        let mut members = Vec::new();
        while let Ok(first) = queue.recv() {
            let mut next = Some(first);
            while let Some(waiting) = next {
                // Nobody waits for it any more: it must not appear later.
                if !waiting.answer.is_closed() {
                    members.push((group.len(), waiting.answer));
                    group.extend_from_slice(waiting.line.as_bytes());
                }
                next = (group.len() < GROUP_BYTES)
                    .then(|| queue.try_recv().ok())
                    .flatten();
            }
            if let Some(reason) = self.lost.reason() {
                fail(members, || PublishError::connection_lost(reason.clone()));
                break;
            }
            if !group.is_empty() && !self.write(&group, std::mem::take(&mut members)) {
                break;
            }
            group.clear();
        }
        // Whoever handed a line over in the last moment learns that it was not written.
        for waiting in queue.try_iter() {
            let reason = self.lost.reason().unwrap_or_default();
            let _ = waiting
                .answer
                .send(Err(PublishError::connection_lost(reason)));
        }
    }

    /// Writes a group and answers its members; `false` when the session has ended by it.
    fn write(&mut self, group: &[u8], members: Vec<Member>) -> bool {
        match self.destination.write(group) {
            Ok(start) => {
                for (offset, answer) in members {
                    let _ = answer.send(Ok(Receipt {
                        stream: Some(self.container.clone()),
                        position: start.map(|start| start + offset as u64),
                        duplicate: false,
                    }));
                }
                true
            }
            Err(failure) => {
                self.lost.set(failure.message.clone());
                fail(members, || {
                    if failure.perhaps_written {
                        PublishError::unknown(failure.message.clone())
                    } else {
                        PublishError::connection_lost(failure.message.clone())
                    }
                });
                false
            }
        }
    }
}

/// Offset of the line in its group, and who waits for it.
type Member = (usize, oneshot::Sender<Result<Receipt, PublishError>>);

fn fail(members: Vec<Member>, error: impl Fn() -> PublishError) {
    for (_, answer) in members {
        let _ = answer.send(Err(error()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::Bytes;

    use super::*;
    use crate::testing::sink::{delivery, delivery_of};

    #[test]
    fn a_line_has_every_field_and_the_exact_payload() {
        let mut delivery = delivery_of(7, |event| {
            event.payload = Payload::Json(Bytes::from_static(b"{\"a\" : 1.0,\n\"a\":2}"));
            event.headers = "{\"b\":\"1\",\n \"a\":\"x\"}".to_owned();
            event.content_type = Some("application/json".to_owned());
        });
        delivery.attempt = 2;
        assert_eq!(
            line(&delivery).unwrap(),
            concat!(
                r#"{"source":"conformance","seq":7,"id":"01900000-0000-7000-8000-000000000007","#,
                r#""kind":"conformance.event","ordering_key":"key-0","content_type":"application/json","#,
                r#""headers":{"b":"1",  "a":"x"},"occurred_at":"2023-11-14T22:13:20.000007Z","attempt":2,"#,
                r#""payload":"{\"a\" : 1.0,\n\"a\":2}"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn bytes_are_base64_and_text_that_is_no_utf8_too() {
        for payload in [
            Payload::Bytes(Bytes::from_static(&[0, 255, 128])),
            Payload::Json(Bytes::from_static(&[0, 255, 128])),
        ] {
            let line = line(&delivery_of(1, |event| event.payload = payload)).unwrap();
            assert!(line.ends_with("\"payload_base64\":\"AP+A\"}\n"), "{line}");
        }
    }

    /// Counts groups; each write waits for a word from the test.
    struct Slow {
        go: Receiver<()>,
        groups: Sender<usize>,
    }

    impl Destination for Slow {
        fn write(&mut self, group: &[u8]) -> Result<Option<u64>, Failure> {
            let lines = group.iter().filter(|byte| **byte == b'\n').count();
            self.groups.send(lines).unwrap();
            self.go.recv().unwrap();
            Ok(None)
        }
    }

    #[tokio::test]
    async fn what_waits_while_a_group_is_written_becomes_one_group_and_what_was_dropped_is_not_written()
     {
        let (go, may_go) = mpsc::channel();
        let (groups, seen) = mpsc::channel();
        let slow = Slow { go: may_go, groups };
        let session = Lines::start(slow, "test".to_owned()).unwrap();
        let many: Vec<Delivery> = (0..100).map(delivery).collect();
        let timeout = Duration::from_secs(20);
        let first = session.publish(&many[0], timeout);
        let rest =
            futures_util::future::join_all(many[1..].iter().map(|d| session.publish(d, timeout)));
        tokio::pin!(first);
        // Polled once, so that the first line is on its way alone.
        assert!(futures_util::poll!(&mut first).is_pending());
        assert_eq!(seen.recv().unwrap(), 1);
        let mut rest = Box::pin(rest);
        assert!(futures_util::poll!(&mut rest).is_pending());
        {
            let dropped = session.publish(&many[0], timeout);
            tokio::pin!(dropped);
            assert!(futures_util::poll!(&mut dropped).is_pending());
        }
        go.send(()).unwrap();
        go.send(()).unwrap();
        first.await.unwrap();
        assert!(rest.await.iter().all(Result::is_ok));
        assert_eq!(seen.recv().unwrap(), 99);
    }
}
