//! Reading a stream back, headers only, by an ephemeral consumer that acknowledges nothing.
//!
//! The consumer lives as long as the reading: it is deleted at the end, and the server forgets it by itself soon after
//! nobody asks it for messages. It takes no message from anybody. Works from nats-server 2.9 on.
//!
//! A user that may not do everything needs to publish to `$JS.API.STREAM.INFO.<stream>` and, below
//! `$JS.API.CONSUMER.`, to `CREATE.<stream>.*`, `MSG.NEXT.<stream>.*`, `INFO.<stream>.*` and `DELETE.<stream>.*`, and to
//! subscribe to `_INBOX.>`. None of these writes to the stream.

use std::time::Duration;

use async_nats::{HeaderMap, Message, Subscriber};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::link::Link;
use super::session::MESSAGE_ID;
use super::stream::{self, Stream};
use crate::envelope;
use crate::event::Timestamp;
use crate::sink::SinkError;
use crate::sink::trail::{Extent, Held, LetsGo, Start, Trail};

/// Messages asked for at once.
const BATCH: u64 = 1_000;

/// The server answers a request by then, with fewer messages or with none.
const EXPIRES: Duration = Duration::from_secs(2);

/// Silence beyond this means that the request or its answer was lost.
const SILENCE: Duration = Duration::from_secs(5);

/// The server forgets a consumer that nobody asked for so long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// How often in a row a consumer may fail before the reading does.
const TRIES: u32 = 5;

/// A stream, and how far it is read.
pub(super) struct StreamTrail {
    link: Link,
    stream: String,
    source: String,
    reader: Option<Reader>,
}

struct Reader {
    consumer: String,
    messages: Subscriber,
    inbox: String,
    /// Messages that the consumer has delivered.
    heard: u64,
    /// The place after the last message read.
    next: Start,
    /// Where the reading ends.
    last: u64,
    failures: u32,
}

/// What the server says about a consumer.
#[derive(Deserialize)]
struct Consumer {
    /// Messages that it still has to deliver.
    #[serde(default)]
    num_pending: u64,
}

/// What a request brought.
#[derive(Default)]
struct Brought {
    held: Vec<Held>,
    messages: u64,
    /// The consumer has nothing more.
    end: bool,
    /// The consumer is not to be trusted any more.
    broken: bool,
}

impl StreamTrail {
    pub(super) fn new(link: Link, stream: String, source: String) -> Self {
        Self {
            link,
            stream,
            source,
            reader: None,
        }
    }

    /// `None` when there is nothing to read from there on.
    async fn consume(
        &self,
        start: Start,
        last: u64,
        failures: u32,
    ) -> Result<Option<Reader>, SinkError> {
        let client = self.link.client();
        let inbox = client.new_inbox();
        let messages = client
            .subscribe(inbox.clone())
            .await
            .map_err(|error| SinkError::new(error.to_string()))?;
        let consumer = format!("outboxd-verify-{}", uuid::Uuid::new_v4().simple());
        let api = format!("CONSUMER.CREATE.{}.{consumer}", self.stream);
        let mut config = json!({
            "name": consumer,
            "ack_policy": "none",
            "replay_policy": "instant",
            "headers_only": true,
            "inactive_threshold": FORGOTTEN_AFTER.as_nanos() as u64,
        });
        if let Some(fields) = config.as_object_mut() {
            fields.extend(policy(start));
        }
        let body = json!({ "stream_name": self.stream, "config": config }).to_string();
        match stream::ask::<Consumer>(&self.link, &api, body.into_bytes()).await? {
            Ok(made) => {
                let reader = Reader {
                    consumer,
                    messages,
                    inbox,
                    heard: 0,
                    next: start,
                    last,
                    failures,
                };
                if made.num_pending == 0 {
                    self.delete(&reader.consumer).await;
                    return Ok(None);
                }
                Ok(Some(reader))
            }
            Err(error) => Err(stream::refused(
                &format!("reading stream {}", self.stream),
                &error,
            )),
        }
    }

    async fn bring(&self, reader: &mut Reader) -> Result<Brought, SinkError> {
        let api = format!(
            "$JS.API.CONSUMER.MSG.NEXT.{}.{}",
            self.stream, reader.consumer
        );
        let body = json!({ "batch": BATCH, "expires": EXPIRES.as_nanos() as u64 });
        let asked = self.link.client().publish_with_reply(
            api,
            reader.inbox.clone(),
            body.to_string().into(),
        );
        asked
            .await
            .map_err(|error| SinkError::new(error.to_string()))?;
        let mut brought = Brought::default();
        while !brought.end && brought.messages < BATCH {
            let message = match tokio::time::timeout(SILENCE, reader.messages.next()).await {
                Ok(Some(message)) => message,
                Ok(None) => return Err(self.lost()),
                Err(_) if self.link.inbox().lost.reason().is_some() => return Err(self.lost()),
                Err(_) => {
                    brought.broken = true;
                    break;
                }
            };
            let Some(place) = Place::of(&message) else {
                // 404 and 408: nothing more now. Anything else is the consumer's end.
                let code = message.status.map_or(0, |status| status.as_u16());
                brought.broken = !matches!(code, 404 | 408);
                break;
            };
            if place.number != reader.heard + 1 {
                brought.broken = true;
                break;
            }
            reader.heard = place.number;
            reader.next = Start::Place(place.place + 1);
            brought.messages += 1;
            brought.end = place.pending == 0 || place.place >= reader.last;
            if place.place <= reader.last {
                let headers = message.headers.as_ref();
                brought
                    .held
                    .extend(headers.and_then(|headers| held(headers, &self.source, &place)));
            }
        }
        Ok(brought)
    }

    /// Messages that the consumer still has to deliver.
    async fn pending(&self, consumer: &str) -> Result<Option<u64>, SinkError> {
        let api = format!("CONSUMER.INFO.{}.{consumer}", self.stream);
        let info = stream::ask::<Consumer>(&self.link, &api, Vec::new()).await?;
        Ok(info.ok().map(|info| info.num_pending))
    }

    async fn end(&mut self) {
        if let Some(reader) = self.reader.take() {
            self.delete(&reader.consumer).await;
        }
    }

    /// If this is not allowed, or lost, the server forgets the consumer by itself.
    async fn delete(&self, consumer: &str) {
        let api = format!("CONSUMER.DELETE.{}.{consumer}", self.stream);
        let _ = stream::ask::<Value>(&self.link, &api, Vec::new()).await;
    }

    fn lost(&self) -> SinkError {
        let reason = self.link.inbox().lost.reason();
        SinkError::new(reason.unwrap_or_else(|| "the connection was lost".to_owned()))
    }
}

#[async_trait]
impl Trail for StreamTrail {
    /// A stream that is not there holds nothing, and never did.
    async fn extent(&mut self) -> Result<Extent, SinkError> {
        let found = Stream::find(&self.link, &self.stream).await?;
        Ok(found.map_or_else(
            || Extent {
                container: self.stream.clone(),
                first: 1,
                last: 0,
                in_time_order: true,
                first_at: None,
                created: None,
                lets_go: LetsGo::default(),
            },
            |stream| stream.extent(),
        ))
    }

    async fn begin(&mut self, start: Start) -> Result<(), SinkError> {
        self.end().await;
        let extent = self.extent().await?;
        if extent.first <= extent.last {
            self.reader = self.consume(start, extent.last, 0).await?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Vec<Held>>, SinkError> {
        loop {
            let Some(mut reader) = self.reader.take() else {
                return Ok(None);
            };
            let brought = self.bring(&mut reader).await;
            let (next, last, failures) = (reader.next, reader.last, reader.failures);
            let consumer = reader.consumer.clone();
            self.reader = Some(reader);
            let brought = brought?;
            if brought.end {
                self.end().await;
                return Ok(Some(brought.held));
            }
            if brought.messages > 0 && !brought.broken {
                if let Some(reader) = &mut self.reader {
                    reader.failures = 0;
                }
                return Ok(Some(brought.held));
            }
            // The last messages may be gone since the reading began; a busy server may only be slow.
            let pending = match brought.broken {
                true => None,
                false => self.pending(&consumer).await?,
            };
            if pending == Some(0) {
                self.end().await;
                return Ok(Some(brought.held));
            }
            if failures >= TRIES {
                return Err(SinkError::new(format!(
                    "stream {} could not be read: its consumer stopped {} times in a row",
                    self.stream,
                    failures + 1
                )));
            }
            self.end().await;
            self.reader = self.consume(next, last, failures + 1).await?;
            if brought.messages > 0 {
                return Ok(Some(brought.held));
            }
        }
    }

    async fn close(&mut self) {
        self.end().await;
        self.link.close("read back").await;
    }
}

/// Where a consumer begins.
fn policy(start: Start) -> serde_json::Map<String, Value> {
    let policy = match start {
        Start::Place(place) if place > 1 => {
            json!({ "deliver_policy": "by_start_sequence", "opt_start_seq": place })
        }
        Start::Time(at) if at > Timestamp(0) => {
            json!({ "deliver_policy": "by_start_time", "opt_start_time": at.to_string() })
        }
        Start::First | Start::Time(_) | Start::Place(_) => json!({ "deliver_policy": "all" }),
    };
    policy.as_object().cloned().unwrap_or_default()
}

/// What the reply subject of a delivered message tells (ADR-15).
#[derive(Debug, PartialEq, Eq)]
struct Place {
    place: u64,
    /// How many messages the consumer had delivered with this one.
    number: u64,
    stored: Timestamp,
    pending: u64,
}

impl Place {
    fn of(message: &Message) -> Option<Self> {
        message.reply.as_deref().and_then(Self::read)
    }

    /// `$JS.ACK.<stream>.<consumer>.<delivered>.<place>.<number>.<nanoseconds>.<pending>`, or the same with domain and
    /// account in front, and perhaps more behind.
    fn read(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let from = match tokens.len() {
            7 => 3,
            9.. => 5,
            _ => return None,
        };
        let number = |at: usize| tokens.get(from + at)?.parse::<u64>().ok();
        let nanos = number(2)?;
        Some(Self {
            place: number(0)?,
            number: number(1)?,
            stored: Timestamp(i64::try_from(nanos / 1_000).ok()?),
            pending: number(3)?,
        })
    }
}

/// The message as an event of this source, if it is one.
fn held(headers: &HeaderMap, source: &str, place: &Place) -> Option<Held> {
    let header = |name: &'static str| headers.get(name).map(|value| value.as_str());
    let (id, replay) = envelope::event_of(source, header(MESSAGE_ID)?)?;
    Some(Held {
        place: place.place,
        at: place.stored,
        id,
        replay,
        seq: header("Outbox-Seq").and_then(|seq| seq.parse().ok()),
        ordering_key: header("Outbox-Key").and_then(envelope::decoded),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn both_forms_of_a_reply_subject_are_read() {
        let expected = Some(Place {
            place: 100,
            number: 7,
            stored: Timestamp(1_790_230_470_084_404),
            pending: 42,
        });
        for reply in [
            "$JS.ACK.events.c.1.100.7.1790230470084404000.42",
            "$JS.ACK.hub.ACC.events.c.1.100.7.1790230470084404000.42",
            "$JS.ACK._.ACC.events.c.1.100.7.1790230470084404000.42.token",
        ] {
            assert_eq!(Place::read(reply), expected, "{reply}");
        }
        for other in [
            "_INBOX.x",
            "$JS.ACK.e.c.1.100.7.1.2.3",
            "$JS.ACK.e.c.1.x.7.1.2",
        ] {
            assert_eq!(Place::read(other), None, "{other}");
        }
    }

    #[test]
    fn a_consumer_begins_where_it_is_told() {
        let kind = |start| policy(start)["deliver_policy"].as_str().unwrap().to_owned();
        assert_eq!(kind(Start::Place(5)), "by_start_sequence");
        assert_eq!(kind(Start::Time(Timestamp(5))), "by_start_time");
        for start in [
            Start::First,
            Start::Place(0),
            Start::Time(Timestamp(i64::MIN)),
        ] {
            assert_eq!(kind(start), "all");
        }
    }
}
