//! One session: events out, acknowledgements in, one by one or in batches as the stream allows.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use async_trait::async_trait;
use bytes::Bytes;

use super::inbox::{Expected, Reply};
use super::link::Link;
use super::order::Order;
use super::round_trip::RoundTrip;
use super::silent::Silent;
use super::stream::Config;
use super::time::Time;
use crate::envelope::{self, Template, headers::Header};
use crate::sink::{Delivery, Lanes, PublishError, Receipt, Session};

/// Largest header block a stream stores.
const MAX_HEADER_BYTES: usize = u16::MAX as usize;

/// By this the stream recognises a repeated event.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";

/// By this another stream refuses an event that is not meant for it.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";

/// A session over one connection.
pub(super) struct NatsSession {
    link: Link,
    stream: Config,
    subject: Template,
    /// How order is kept.
    order: Order,
    /// Largest message the server takes, headers included; a larger one would close the connection.
    max_payload: usize,
    /// How long the stream takes to answer.
    round_trip: RoundTrip,
    /// The lanes of this session.
    lanes: Option<Lanes>,
    silent: Silent,
    /// The highest place in the stream that was heard of; 0: none.
    last_place: AtomicU64,
}

/// A message that the server will not choke on.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) subject: Subject,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
}

impl NatsSession {
    /// `round_trip` is how long the stream took to answer, and `last_place` is its, now.
    pub(super) fn new(
        link: Link,
        stream: Config,
        subject: Template,
        order: Order,
        round_trip: Duration,
        last_place: u64,
    ) -> Self {
        Self {
            lanes: order.lanes(stream.duplicate_window(), round_trip),
            max_payload: link.client().max_payload(),
            link,
            stream,
            subject,
            order,
            round_trip: RoundTrip::new(round_trip),
            silent: Silent::default(),
            last_place: AtomicU64::new(last_place),
        }
    }

    /// How long the stream takes to answer.
    pub(super) fn round_trip(&self) -> &RoundTrip {
        &self.round_trip
    }

    /// How order is kept.
    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// The stream's name.
    pub(super) fn stream(&self) -> &str {
        &self.stream.name
    }

    /// The highest place in the stream that was heard of.
    pub(super) fn last_place(&self) -> u64 {
        self.last_place.load(Ordering::Acquire)
    }

    /// The stream has come to this place.
    pub(super) fn saw_place(&self, place: u64) {
        self.last_place.fetch_max(place, Ordering::AcqRel);
    }

    /// The message for a delivery, with everything checked that the server answers by closing the connection.
    ///
    /// The stream's own `max_msg_size` is left to the server, which refuses only the one message and
    /// knows its present value.
    pub(super) fn message(&self, delivery: &Delivery) -> Result<Message, PublishError> {
        let event = &*delivery.event;
        let row = envelope::headers::row(&event.headers)?;
        let subject = self.subject.subject(delivery, &row)?;
        let mut headers = envelope::headers::all(delivery, row)?;
        let id = envelope::message_id(&delivery.source, event.id);
        headers.push((Cow::Borrowed(MESSAGE_ID), id));
        // An event that another stream would take is refused there instead of being stored.
        headers.push((Cow::Borrowed(EXPECTED_STREAM), self.stream.name.clone()));
        check_size(&headers, event.payload.as_bytes(), self.max_payload)?;
        Ok(Message {
            subject: subject.into(),
            headers: header_map(headers)?,
            payload: event.payload.as_bytes().clone(),
        })
    }

    /// The message for a delivery in a batch, unless its subject would hold up the others.
    pub(super) fn message_not_silent(&self, delivery: &Delivery) -> Result<Message, PublishError> {
        let message = self.message(delivery)?;
        if self.silent.includes(&message.subject) {
            return Err(PublishError::unavailable(format!(
                "nobody answered on subject {} lately: its events go one by one",
                message.subject
            )));
        }
        Ok(message)
    }

    /// Nobody answered the first message of a batch.
    pub(super) fn was_silent(&self, subject: &str) {
        self.silent.add(subject);
    }

    /// Hands a message to the client. Until this returns `Ok` nothing of it was sent, and nothing will be.
    pub(super) async fn send(
        &self,
        message: Message,
        reply_to: String,
        time: &Time,
    ) -> Result<(), PublishError> {
        let sending = self.link.client().publish_with_reply_and_headers(
            message.subject,
            Subject::from(reply_to),
            message.headers,
            message.payload,
        );
        self.taken_by(time, sending).await
    }

    async fn taken_by(
        &self,
        time: &Time,
        sending: impl Future<Output = Result<(), async_nats::PublishError>>,
    ) -> Result<(), PublishError> {
        // A process that was stopped, or a machine that slept, may come back at any line.
        if time.is_over() {
            return Err(PublishError::unavailable(
                "its time was over before it was sent",
            ));
        }
        match tokio::time::timeout_at(time.answer_by(), sending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(match error.kind() {
                async_nats::client::PublishErrorKind::MaxPayloadExceeded => {
                    PublishError::rejected(envelope::TOO_LARGE, error.to_string())
                }
                async_nats::client::PublishErrorKind::InvalidSubject => {
                    PublishError::rejected(envelope::INVALID_SUBJECT, error.to_string())
                }
                async_nats::client::PublishErrorKind::Send => {
                    PublishError::connection_lost(self.why_lost())
                }
            }),
            Err(_) => Err(PublishError::unavailable(
                "the connection took nothing for the whole publish timeout",
            )),
        }
    }

    /// Hands a message to the client that nobody has to answer.
    pub(super) async fn send_silently(
        &self,
        message: Message,
        time: &Time,
    ) -> Result<(), PublishError> {
        let Message {
            subject,
            headers,
            payload,
        } = message;
        let sending = self
            .link
            .client()
            .publish_with_headers(subject, headers, payload);
        self.taken_by(time, sending).await
    }

    /// Publishes one message and waits for its own acknowledgement.
    pub(super) async fn publish_message(
        &self,
        message: Message,
        time: &Time,
    ) -> Result<Receipt, PublishError> {
        let subject = message.subject.clone();
        let mut expected = self
            .link
            .expect(subject.clone())
            .map_err(PublishError::connection_lost)?;
        let answer_by = time.answer_by();
        let asked = Instant::now();
        self.send(message, expected.reply_to(), time).await?;
        match tokio::time::timeout_at(answer_by, expected.reply()).await {
            Ok(Some(reply)) => {
                self.silent.heard(&subject);
                self.round_trip.heard(asked.elapsed());
                self.judge(reply, &subject)
            }
            Ok(None) => Err(PublishError::unknown(self.why_lost())),
            Err(_) => {
                self.silent.add(&subject);
                Err(self.no_answer(&subject, &expected, time.timeout))
            }
        }
    }

    fn judge(&self, reply: Reply, subject: &str) -> Result<Receipt, PublishError> {
        let stream = &self.stream.name;
        match reply {
            Reply::Ack(ack) => {
                let receipt = ack.judge(stream, subject)?;
                self.saw_place(receipt.position.unwrap_or_default());
                Ok(receipt)
            }
            Reply::NoResponders => Err(no_responders(stream, subject)),
            Reply::Forbidden => Err(forbidden(subject)),
            Reply::Body(_) => Err(PublishError::unknown("an answer to another question")),
        }
    }

    fn no_answer(&self, subject: &str, expected: &Expected, timeout: Duration) -> PublishError {
        if self.link.inbox().is_forbidden(subject) {
            forbidden(subject)
        } else if expected.is_foreign() {
            PublishError::unavailable(format!(
                "subject {subject} was answered by something that is no stream, and by no stream"
            ))
        } else {
            PublishError::unknown(format!("no acknowledgement within {timeout:?}"))
        }
    }

    pub(super) fn why_lost(&self) -> String {
        let reason = self.link.inbox().lost.reason();
        reason.unwrap_or_else(|| "the connection was lost".to_owned())
    }
}

#[async_trait]
impl Session for NatsSession {
    /// Cancel-safe in this sense: dropped before the client took the message, nothing is sent; dropped later,
    /// the outcome is unknown and nobody waits for its acknowledgement any more.
    ///
    /// A connection lost before the client took the message is `Unavailable` with `connection_lost`; lost
    /// afterwards, the outcome is `Unknown`, and [`Session::lost`] resolves.
    async fn publish(
        &self,
        delivery: &Delivery,
        timeout: Duration,
    ) -> Result<Receipt, PublishError> {
        let time = Time::from_now(timeout, timeout);
        let message = self.message(delivery)?;
        self.publish_message(message, &time).await
    }

    fn lanes(&self) -> Option<Lanes> {
        self.lanes
    }

    fn mode(&self) -> &'static str {
        self.order.as_str()
    }

    /// Dropping the future leaves the outcome of what was sent unknown.
    async fn publish_batch(
        &self,
        batch: &[Delivery],
        timeout: Duration,
        limit: Duration,
    ) -> Vec<Result<Receipt, PublishError>> {
        self.publish_all(batch, timeout, limit).await
    }

    async fn lost(&self) -> String {
        self.link.inbox().lost.wait().await
    }

    /// Returns when the client, its socket and everything it had buffered are gone.
    async fn close(&self) {
        self.link.close("the session was closed").await;
    }
}

/// No stream has the subject.
pub(super) fn no_responders(stream: &str, subject: &str) -> PublishError {
    PublishError::unavailable(format!(
        "no stream takes subject {subject}: add it to stream {stream}, or the stream has no leader now"
    ))
}

/// The server does not let this user publish to the subject.
pub(super) fn forbidden(subject: &str) -> PublishError {
    PublishError::unavailable(format!(
        "this user may not publish to {subject}: allow it on the server"
    ))
}

/// The header block and the whole message as they will be on the wire.
fn check_size(headers: &[Header], payload: &Bytes, max: usize) -> Result<(), PublishError> {
    const VERSION_LINE: usize = "NATS/1.0\r\n".len();
    const LINE_END: usize = "\r\n".len();
    const SEPARATOR: usize = ": ".len();
    let lines: usize = headers
        .iter()
        .map(|(name, value)| name.len() + SEPARATOR + value.len() + LINE_END)
        .sum();
    let block = VERSION_LINE + lines + LINE_END;
    let too_large = |what: &str, bytes: usize, max: usize| {
        Err(PublishError::rejected(
            envelope::TOO_LARGE,
            format!("{what} has {bytes} bytes, at most {max} are allowed"),
        ))
    };
    if block > MAX_HEADER_BYTES {
        return too_large("the header block", block, MAX_HEADER_BYTES);
    }
    if block + payload.len() > max {
        return too_large("the event with its headers", block + payload.len(), max);
    }
    Ok(())
}

/// Only conversions that cannot panic: the client panics on text that it does not like, wherever that is not
/// parsed by a function that says so.
fn header_map(headers: Vec<Header>) -> Result<HeaderMap, PublishError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let refused = |what: &str, name: &str| {
            PublishError::rejected(
                envelope::INVALID_HEADER,
                format!("the NATS client does not take {what} of header {name:?}"),
            )
        };
        if value.contains(['\r', '\n']) {
            return Err(refused("the value", &name));
        }
        let key = match name {
            // Ours, without a copy.
            Cow::Borrowed(name) => HeaderName::from_static(name),
            Cow::Owned(name) => match HeaderName::from_str(&name) {
                Ok(key) => key,
                Err(_) => return Err(refused("the name", &name)),
            },
        };
        map.append(key, HeaderValue::from(value));
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sizes_are_counted_as_on_the_wire() {
        let headers = [("a".into(), "bc".to_owned())];
        let block = "NATS/1.0\r\na: bc\r\n\r\n".len();
        let payload = Bytes::from(vec![b'x'; 100]);
        assert!(check_size(&headers, &payload, block + 100).is_ok());
        let error = check_size(&headers, &payload, block + 99).unwrap_err();
        assert!(error.message.contains(&format!("{} bytes", block + 100)));
        let wide = [("a".into(), "x".repeat(MAX_HEADER_BYTES))];
        assert!(check_size(&wide, &Bytes::new(), 1 << 20).is_err());
    }

    #[test]
    fn what_the_envelope_lets_pass_the_client_takes() {
        let headers = [
            ("!#$%&'*+-.^_`|~".into(), "a\tb é".to_owned()),
            ("x".into(), String::new()),
        ];
        assert_eq!(header_map(headers.into()).unwrap().len(), 2);
    }

    #[test]
    fn what_the_client_would_panic_at_is_refused() {
        for (name, value) in [("x", "a\r\nb"), ("a:b", "x"), ("a b", "x")] {
            let headers = vec![(name.to_owned().into(), value.to_owned())];
            let error = header_map(headers).unwrap_err();
            assert_eq!(
                error.kind,
                crate::sink::PublishErrorKind::Rejected {
                    code: envelope::INVALID_HEADER
                }
            );
        }
    }
}
