//! NATS JetStream: each event is one message with an id, and counts as published when the expected stream has
//! acknowledged it.
//!
//! - [`Nats::open`](Sink::open) makes a new client each time, with credentials read anew, and looks at the stream.
//! - A session ends with the first loss of its connection; nothing it still held is sent later (`link`).
//! - Everything that a server answers by closing the connection is checked before it is sent (`session`).
//! - What an answer means, and whose fault a refusal is, stands in one place (`answer`).
//!
//! Each session has one thread of its own, which drives its client.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::trail::Readback;
use super::{Session, Sink, SinkError};
use crate::envelope::Template;
use crate::relay;

mod answer;
mod atomic;
mod batch;
mod fast;
mod inbox;
mod link;
mod order;
mod round_trip;
mod session;
mod silent;
mod stream;
mod target;
mod time;
mod trail;

use link::Link;
use order::Order;
use session::NatsSession;
use stream::Stream;
use target::Target;
use trail::StreamTrail;

/// A stream that takes longer to tell about itself is asked once more.
const SLOW: Duration = Duration::from_millis(20);

/// How order is kept with more than one event in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// What the stream allows: lanes, or else atomic batches, or else single events.
    #[default]
    Auto,
    /// Ordered lanes: fast-ingest batches (stream with `allow_batched`, nats-server 2.14).
    Lane,
    /// Atomic batches for long runs (stream with `allow_atomic`, nats-server 2.12).
    Atomic,
    /// One event in flight per key.
    Single,
}

/// How to reach and use a JetStream stream.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name from configuration.
    pub name: String,
    /// Server URLs, comma separated, without secrets.
    pub url: String,
    /// User.
    pub user: Option<String>,
    /// Password.
    pub password: Option<SecretString>,
    /// File that holds the password, read again at each connect.
    pub password_file: Option<PathBuf>,
    /// Token.
    pub token: Option<SecretString>,
    /// File that holds the token, read again at each connect.
    pub token_file: Option<PathBuf>,
    /// Credentials file.
    pub creds_file: Option<PathBuf>,
    /// `Some(true)`: TLS or no connection. `Some(false)`: plain text. `None`: TLS unless every server is on
    /// the loopback and neither a `tls://` URL nor one of the files below asks for it.
    pub tls: Option<bool>,
    /// Certificate authority, PEM, read again at each connect.
    pub ca_file: Option<PathBuf>,
    /// Certificate to show to the server, PEM, read again at each connect.
    pub client_cert_file: Option<PathBuf>,
    /// Its private key, PEM, read again at each connect.
    pub client_key_file: Option<PathBuf>,
    /// The stream every acknowledgement must come from.
    pub stream: String,
    /// Create the stream when it is missing.
    pub create_stream: bool,
    /// Subject template.
    pub subject: String,
    /// How order is kept.
    pub mode: Mode,
    /// How long after it was sent an event of unknown outcome may be sent again
    /// ([`relay::repeats_within`]); the stream has to remember its id that long.
    pub repeats_within: Duration,
}

impl Options {
    /// A stream at a server, everything else as configuration leaves it: nobody's credentials, TLS by the rule of its
    /// field, the stream is not created, order is kept as the stream allows, and the relay's times are the defaults.
    pub fn new(
        name: impl Into<String>,
        url: impl Into<String>,
        stream: impl Into<String>,
        subject: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            user: None,
            password: None,
            password_file: None,
            token: None,
            token_file: None,
            creds_file: None,
            tls: None,
            ca_file: None,
            client_cert_file: None,
            client_key_file: None,
            stream: stream.into(),
            create_stream: false,
            subject: subject.into(),
            mode: Mode::Auto,
            repeats_within: relay::repeats_within(relay::LEASE_TTL, relay::PUBLISH_TIMEOUT),
        }
    }
}

/// The sink.
#[derive(Debug)]
pub struct Nats {
    name: String,
    stream: String,
    subject: Template,
    /// Subjects of the stream, when it is to be created.
    create_with: Option<String>,
    target: Target,
    mode: Mode,
    repeats_within: Duration,
    /// What is doubtful about the stream has been said.
    warned: AtomicBool,
}

impl Nats {
    /// Checks the options; no I/O.
    ///
    /// # Errors
    /// In words, without secrets: URL, credentials that exclude one another, stream name, subject template.
    pub fn new(options: Options) -> Result<Self, SinkError> {
        let of_sink = |message: String| SinkError::new(format!("sink {}: {message}", options.name));
        check_stream_name(&options.stream).map_err(of_sink)?;
        let subject =
            Template::parse(&options.subject).map_err(|error| of_sink(error.to_string()))?;
        let create_with = match (options.create_stream, subject.covering()) {
            (false, _) => None,
            (true, Some(subjects)) => Some(subjects),
            (true, None) => {
                return Err(of_sink(format!(
                    "create_stream needs a subject that begins with a literal token, such as events.{{kind}}, not \
                     {}",
                    subject.as_str()
                )));
            }
        };
        Ok(Self {
            name: options.name.clone(),
            stream: options.stream.clone(),
            subject,
            create_with,
            repeats_within: options.repeats_within,
            mode: options.mode,
            target: Target::new(options.clone()).map_err(|error| of_sink(error.message))?,
            warned: AtomicBool::new(false),
        })
    }

    async fn stream(&self, link: &Link) -> Result<Stream, SinkError> {
        let found = match Stream::find(link, &self.stream).await? {
            Some(stream) => stream,
            None => match &self.create_with {
                Some(subjects) => {
                    Stream::create(link, &self.stream, subjects, self.repeats_within).await?
                }
                None => return Err(self.missing()),
            },
        };
        found.usable()?;
        Ok(found)
    }

    fn missing(&self) -> SinkError {
        SinkError::new(format!(
            "stream {} does not exist on {}: create it, or set create_stream = true",
            self.stream,
            self.target.shown()
        ))
    }

    /// Says once per process what is doubtful about the stream, and each time what it can do.
    fn report(&self, stream: &Stream, max_payload: usize) {
        let config = &stream.config;
        tracing::debug!(
            sink = %self.name,
            stream = %config.name,
            max_payload,
            duplicate_window = ?config.duplicate_window(),
            allow_batched = config.allow_batched,
            allow_atomic = config.allow_atomic,
            "connected"
        );
        if !self.warned.swap(true, Ordering::Relaxed) {
            let findings = stream.findings(max_payload, self.repeats_within);
            for finding in findings
                .into_iter()
                .chain(order::finding(self.mode, config))
            {
                tracing::warn!(sink = %self.name, "{finding}");
            }
        }
    }

    /// Does each kind's subject lead to the stream? Several kinds may share a subject.
    async fn check_subjects(
        &self,
        link: &Link,
        kinds: &[String],
    ) -> Result<Vec<String>, SinkError> {
        let mut findings = Vec::new();
        let mut subjects = BTreeMap::new();
        for kind in kinds {
            match self.subject.example(kind) {
                Ok(subject) => {
                    subjects.entry(subject).or_insert(kind);
                }
                Err(error) => findings.push(error.message),
            }
        }
        for (subject, kind) in subjects {
            let streams = stream::streams_for(link, &subject).await?;
            if streams.contains(&self.stream) {
                continue;
            }
            findings.push(match streams.first() {
                Some(other) => format!(
                    "kind {kind} goes to subject {subject}, which belongs to stream {other} and not to {}",
                    self.stream
                ),
                None => format!(
                    "kind {kind} goes to subject {subject}, which no stream takes: add it to stream {}",
                    self.stream
                ),
            });
        }
        Ok(findings)
    }
}

#[async_trait]
impl Sink for Nats {
    fn kind(&self) -> &'static str {
        "nats"
    }

    async fn open(&self) -> Result<Arc<dyn Session>, SinkError> {
        let link = Link::open(&self.target, &self.name).await?;
        let asked = Instant::now();
        let mut stream = self.stream(&link).await?;
        let mut round_trip = asked.elapsed();
        if round_trip > SLOW {
            // It may have been made just now, or woken up.
            let asked = Instant::now();
            stream = self.stream(&link).await?;
            round_trip = round_trip.min(asked.elapsed());
        }
        self.report(&stream, link.client().max_payload());
        let order = Order::of(self.mode, &stream.config);
        let last_place = stream.last_place();
        Ok(Arc::new(NatsSession::new(
            link,
            stream.config,
            self.subject.clone(),
            order,
            round_trip,
            last_place,
        )))
    }

    /// Creates nothing: a stream that is missing and will be created is no finding.
    async fn check(&self, kinds: &[String]) -> Result<Vec<String>, SinkError> {
        let link = Link::open(&self.target, &self.name).await?;
        let findings = match Stream::find(&link, &self.stream).await? {
            Some(stream) => {
                let mut findings =
                    stream.findings(link.client().max_payload(), self.repeats_within);
                findings.extend(order::finding(self.mode, &stream.config));
                findings.extend(self.check_subjects(&link, kinds).await?);
                findings
            }
            None if self.create_with.is_some() => Vec::new(),
            None => vec![self.missing().message],
        };
        link.close("checked").await;
        Ok(findings)
    }

    async fn remarks(&self) -> Result<Vec<String>, SinkError> {
        let link = Link::open(&self.target, &self.name).await?;
        let stream = Stream::find(&link, &self.stream).await?;
        link.close("looked at").await;
        let remark = |stream: Stream| order::remark(self.mode, &stream.config);
        Ok(stream.map(remark).into_iter().collect())
    }

    /// By a consumer of its own, which ends with the reading; `trail` says what the user needs.
    async fn trail(&self, source: &str) -> Result<Readback, SinkError> {
        let link = Link::open(&self.target, &self.name).await?;
        match Stream::find(&link, &self.stream).await? {
            Some(stream) if stream.is_work_queue() => {
                return Ok(Readback::No(format!(
                    "stream {} is a work queue, where whoever reads a message takes it: it cannot be read back",
                    self.stream
                )));
            }
            None if self.create_with.is_none() => return Err(self.missing()),
            Some(_) | None => {}
        }
        let trail = StreamTrail::new(link, self.stream.clone(), source.to_owned());
        Ok(Readback::Trail(Box::new(trail)))
    }
}

/// What NATS allows, since the name is part of the subjects of the stream's API.
fn check_stream_name(name: &str) -> Result<(), String> {
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    if name.is_empty() || name.len() > 255 || name.contains(forbidden) {
        return Err(format!(
            "stream {name:?} is not a stream name: no white space and none of . * > / \\"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    pub(super) fn options(url: &str) -> Options {
        Options::new("events", url, "EVENTS", "events.{kind}")
    }

    #[test]
    fn mistakes_show_at_once_and_name_the_sink() {
        let wrong = |change: fn(&mut Options)| {
            let mut options = options("nats://127.0.0.1");
            change(&mut options);
            Nats::new(options).unwrap_err().message
        };
        for (message, words) in [
            (wrong(|o| o.stream = "A.B".to_owned()), "stream name"),
            (wrong(|o| o.stream.clear()), "stream name"),
            (wrong(|o| o.subject = "e.{x}".to_owned()), "placeholder"),
            (wrong(|o| o.url = "nats://a:b:c".to_owned()), "url"),
            (
                wrong(|o| {
                    o.create_stream = true;
                    o.subject = "{kind}".to_owned();
                }),
                "literal token",
            ),
        ] {
            assert!(message.contains(words), "{message}");
            assert!(message.starts_with("sink events: "), "{message}");
        }
    }
}
