//! The stream: found, created when asked, and judged.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::answer::ApiError;
use super::link::{Link, RequestError};
use crate::event::Timestamp;
use crate::sink::SinkError;
use crate::sink::trail::{Extent, LetsGo};

/// Limit for one request to the JetStream API.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// What servers take for a stream that says nothing about its dedupe window.
const USUAL_WINDOW: Duration = Duration::from_secs(120);

/// The size that a message may well have, in bytes.
const LARGE: u128 = 1 << 20;

const STREAM_NOT_FOUND: u32 = 10_059;
const STREAM_NAME_IN_USE: u32 = 10_058;
const INVALID_JSON: u32 = 10_025;

/// What the server says about a stream, as far as it matters here. Fields that a server does not know or does
/// not show are off.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Stream {
    pub(super) config: Config,
    #[serde(default)]
    state: State,
    #[serde(default)]
    created: String,
}

/// A stream's configuration as the server echoes it: what was really set, not what was asked for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) name: String,
    pub(super) no_ack: bool,
    /// Nanoseconds.
    duplicate_window: u64,
    discard: String,
    retention: String,
    max_msgs: i64,
    max_bytes: i64,
    /// Nanoseconds; 0: none.
    max_age: i64,
    max_msgs_per_subject: i64,
    max_msg_size: i64,
    sealed: bool,
    mirror: Option<serde::de::IgnoredAny>,
    /// Ordered fast-ingest batches are allowed (2.14).
    pub(super) allow_batched: bool,
    /// Atomic batches are allowed (2.12).
    pub(super) allow_atomic: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct State {
    consumer_count: u64,
    messages: u64,
    bytes: u64,
    first_seq: u64,
    first_ts: String,
    last_seq: u64,
}

impl Config {
    /// How long the stream remembers message ids.
    pub(super) fn duplicate_window(&self) -> Duration {
        Duration::from_nanos(self.duplicate_window)
    }
}

impl Stream {
    /// Finds a stream; `None` when there is none of this name.
    pub(super) async fn find(link: &Link, name: &str) -> Result<Option<Self>, SinkError> {
        match ask(link, &format!("STREAM.INFO.{name}"), Vec::new()).await? {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if error.err_code == STREAM_NOT_FOUND => Ok(None),
            Err(error) => Err(refused(&format!("stream {name}"), &error)),
        }
    }

    /// Creates a stream for `subjects`, with ordered batches where the server has them. When somebody else was
    /// quicker, theirs is taken.
    pub(super) async fn create(
        link: &Link,
        name: &str,
        subjects: &str,
        repeats_within: Duration,
    ) -> Result<Self, SinkError> {
        let api = format!("STREAM.CREATE.{name}");
        let mut config = json!({
            "name": name,
            "subjects": [subjects],
            "storage": "file",
            "retention": "limits",
            "allow_batched": true,
            "duplicate_window": whole_seconds(repeats_within.max(USUAL_WINDOW)).as_nanos() as u64,
        });
        let mut created = ask(link, &api, config.to_string().into_bytes()).await?;
        if matches!(&created, Err(error) if error.err_code == INVALID_JSON) {
            // A server that is strict about fields it does not know.
            if let Some(fields) = config.as_object_mut() {
                fields.remove("allow_batched");
            }
            created = ask(link, &api, config.to_string().into_bytes()).await?;
        }
        match created {
            Ok(stream) => {
                tracing::info!(stream = name, subjects, "created the stream");
                Ok(stream)
            }
            Err(error) if error.err_code == STREAM_NAME_IN_USE => Self::find(link, name)
                .await?
                .ok_or_else(|| refused(&format!("creating stream {name}"), &error)),
            Err(error) => Err(refused(&format!("creating stream {name}"), &error)),
        }
    }

    /// The place of the last message that it ever had, when it was looked at.
    pub(super) fn last_place(&self) -> u64 {
        self.state.last_seq
    }

    /// Each message is handed out once: whoever reads it takes it from somebody.
    pub(super) fn is_work_queue(&self) -> bool {
        self.config.retention == "workqueue"
    }

    /// What it holds, and what it lets go.
    pub(super) fn extent(&self) -> Extent {
        let (config, state) = (&self.config, &self.state);
        // As if nothing had been deleted from the middle, which makes no room for what went at the beginning.
        let span = (state.last_seq + 1).saturating_sub(state.first_seq);
        let bytes = match state.messages {
            0 => 0,
            messages => u128::from(state.bytes) * u128::from(span) / u128::from(messages),
        };
        // The next message need not fit where the last one that went was larger.
        let bytes = bytes + (bytes / 10).max(LARGE);
        let reached = |limit: i64, is: u128| {
            u128::try_from(limit).is_ok_and(|limit| limit > 0 && is >= limit)
        };
        let any = if config.retention == "interest" {
            Some("it lets a message go when every consumer has it")
        } else if config.max_msgs_per_subject > 0 {
            Some("it keeps so many messages of a subject only (max_msgs_per_subject)")
        } else {
            None
        };
        Extent {
            container: config.name.clone(),
            first: state.first_seq,
            last: state.last_seq,
            in_time_order: true,
            first_at: Timestamp::parse(&state.first_ts).filter(|_| state.messages > 0),
            created: Timestamp::parse(&self.created),
            lets_go: LetsGo {
                after: u64::try_from(config.max_age)
                    .ok()
                    .filter(|age| *age > 0)
                    .map(Duration::from_nanos),
                oldest: config.discard != "new"
                    && state.messages > 0
                    && (reached(config.max_msgs, span.into()) || reached(config.max_bytes, bytes)),
                all: false,
                any: any.map(|why| format!("stream {}: {why}", config.name)),
            },
        }
    }

    /// Can it be published to at all?
    pub(super) fn usable(&self) -> Result<(), SinkError> {
        let name = &self.config.name;
        let why = if self.config.no_ack {
            "does not acknowledge (no_ack), so nothing could ever count as published: turn no_ack off"
        } else if self.config.sealed {
            "is sealed and takes no events: use another stream"
        } else if self.config.mirror.is_some() {
            "is a mirror and takes no events of its own: use the stream it mirrors"
        } else {
            return Ok(());
        };
        Err(SinkError::new(format!("stream {name} {why}")))
    }

    /// What an operator should know about its limits, one sentence each.
    ///
    /// A maximum age is no finding: it is how streams are usually trimmed, and it takes no event before its
    /// time whatever the policy.
    pub(super) fn findings(&self, max_payload: usize, repeats_within: Duration) -> Vec<String> {
        let config = &self.config;
        let name = &config.name;
        let mut found = Vec::new();
        if let Err(unusable) = self.usable() {
            found.push(unusable.message);
        }
        if config.duplicate_window() < repeats_within {
            found.push(format!(
                "stream {name} remembers message ids for {:?} only, and after a crash or a lost answer an event is \
                 sent again up to {:?} later (the lease, publish_timeout and the longest pause): it would be \
                 stored twice, so set duplicate_window to that or more, or lease.ttl lower",
                config.duplicate_window(),
                whole_seconds(repeats_within)
            ));
        }
        let limits: Vec<String> = [
            ("max_msgs", config.max_msgs),
            ("max_bytes", config.max_bytes),
            ("max_msgs_per_subject", config.max_msgs_per_subject),
        ]
        .into_iter()
        .filter(|(_, limit)| *limit > 0)
        .map(|(limit, value)| format!("{limit} = {value}"))
        .collect();
        if config.discard == "old" && !limits.is_empty() {
            found.push(format!(
                "stream {name} throws acknowledged events away when it is full ({}, discard = old): use \
                 discard = new, which makes the relay wait",
                limits.join(", ")
            ));
        }
        if config.max_msg_size > 0 && (config.max_msg_size as u64) < max_payload as u64 {
            found.push(format!(
                "stream {name} takes at most {} bytes an event (max_msg_size): larger ones are discarded as \
                 too_large",
                config.max_msg_size
            ));
        }
        let drops = match config.retention.as_str() {
            "interest" => "throws every event away at once",
            "workqueue" => "keeps every event until it has one",
            _ => "",
        };
        if !drops.is_empty() && self.state.consumer_count == 0 {
            found.push(format!(
                "stream {name} has retention {} and no consumer: it {drops}",
                config.retention
            ));
        }
        found
    }
}

fn whole_seconds(span: Duration) -> Duration {
    Duration::from_secs(span.as_millis().div_ceil(1_000) as u64)
}

/// Names of the streams that take `subject`; there is at most one, unless subjects are mapped.
pub(super) async fn streams_for(link: &Link, subject: &str) -> Result<Vec<String>, SinkError> {
    #[derive(Deserialize)]
    struct Names {
        #[serde(default)]
        streams: Option<Vec<String>>,
    }
    let body = json!({ "subject": subject }).to_string().into_bytes();
    match ask::<Names>(link, "STREAM.NAMES", body).await? {
        Ok(names) => Ok(names.streams.unwrap_or_default()),
        Err(error) => Err(refused("looking for streams", &error)),
    }
}

/// One request to the API: the server's answer or its refusal.
pub(super) async fn ask<T: DeserializeOwned>(
    link: &Link,
    what: &str,
    body: Vec<u8>,
) -> Result<Result<T, ApiError>, SinkError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Answer<T> {
        Refused { error: ApiError },
        Given(T),
    }
    let subject = format!("$JS.API.{what}");
    let body = link
        .request(&subject, body, API_TIMEOUT)
        .await
        .map_err(|error| no_answer(&subject, error))?;
    match serde_json::from_slice(&body) {
        Ok(Answer::Given(answer)) => Ok(Ok(answer)),
        Ok(Answer::Refused { error }) => Ok(Err(error)),
        Err(error) => Err(SinkError {
            message: format!("the answer to {subject} is not understood: {error}"),
            source: Some(Box::new(error)),
        }),
    }
}

fn no_answer(subject: &str, error: RequestError) -> SinkError {
    SinkError::new(match error {
        RequestError::Lost(reason) => reason,
        RequestError::TimedOut => format!(
            "no answer to {subject} within {API_TIMEOUT:?}: JetStream may have no leader, or this user may not \
             publish to $JS.API.> or subscribe to _INBOX.>"
        ),
        RequestError::NoResponders => {
            "JetStream is not enabled on this server or account: enable it".to_owned()
        }
        RequestError::Forbidden => {
            format!("this user may not publish to {subject}: allow it")
        }
    })
}

pub(super) fn refused(what: &str, error: &ApiError) -> SinkError {
    SinkError::new(format!("{what}: the server says: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn stream(config: serde_json::Value, consumers: u64) -> Stream {
        serde_json::from_value(json!({
            "config": config, "state": {"consumer_count": consumers}, "created": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    const TWO_MINUTES: u64 = 120_000_000_000;
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_sound_stream_has_no_findings() {
        let sound = stream(
            json!({"name": "E", "discard": "old", "retention": "limits", "max_msgs": -1, "max_bytes": -1,
                "max_age": 1_000, "max_msg_size": -1, "duplicate_window": TWO_MINUTES, "new_field": [1]}),
            0,
        );
        assert_eq!(sound.findings(1 << 20, MINUTE), Vec::<String>::new());
        // A longer lease asks for a longer memory.
        let found = sound.findings(1 << 20, Duration::from_millis(120_001));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("for 120s only") && found[0].contains("121s later"),
            "{found:?}"
        );
        assert!(!sound.config.allow_batched && !sound.config.allow_atomic);
    }

    #[test]
    fn what_a_stream_lets_go_is_read_from_its_limits() {
        let lets_go = |config: serde_json::Value, messages: u64, bytes: u64| {
            let stream: Stream = serde_json::from_value(json!({
                "config": config, "created": "2026-01-01T00:00:00Z",
                "state": {"messages": messages, "bytes": bytes, "first_seq": 4, "last_seq": 9,
                    "first_ts": "2026-01-02T00:00:00.5Z"},
            }))
            .unwrap();
            let extent = stream.extent();
            assert_eq!((extent.first, extent.last), (4, 9));
            assert_eq!(extent.created < extent.first_at, messages > 0);
            extent.lets_go
        };
        let none = json!({"name": "E", "max_msgs": -1, "max_bytes": -1, "max_age": 0});
        assert_eq!(lets_go(none, 6, 600), LetsGo::default());
        let aged = lets_go(json!({"name": "E", "max_age": 60_000_000_000_u64}), 6, 600);
        assert_eq!(aged.after, Some(MINUTE));
        for (config, full) in [
            (json!({"name": "E", "max_msgs": 6}), true),
            (json!({"name": "E", "max_msgs": 7}), false),
            (json!({"name": "E", "max_bytes": 10 << 20}), true),
            (json!({"name": "E", "max_bytes": 20 << 20}), false),
        ] {
            assert_eq!(lets_go(config.clone(), 6, 9 << 20).oldest, full, "{config}");
            // What was deleted from the middle changes nothing; a purge leaves nothing that is full.
            assert_eq!(lets_go(config.clone(), 2, 3 << 20).oldest, full, "{config}");
            assert!(!lets_go(config.clone(), 0, 0).oldest);
            let mut refuses = config;
            refuses["discard"] = json!("new");
            assert!(!lets_go(refuses, 6, 9 << 20).oldest);
        }
        for config in [
            json!({"name": "E", "max_msgs_per_subject": 1}),
            json!({"name": "E", "retention": "interest"}),
        ] {
            assert!(lets_go(config, 6, 600).any.is_some());
        }
    }

    #[test]
    fn each_danger_is_one_finding() {
        let base = json!({"name": "E", "discard": "old", "retention": "limits",
            "duplicate_window": TWO_MINUTES});
        for (change, words) in [
            (
                json!({"duplicate_window": 1_000_000_000}),
                "duplicate_window",
            ),
            (json!({"max_msgs": 3}), "max_msgs = 3"),
            (json!({"max_bytes": 9}), "max_bytes = 9"),
            (
                json!({"max_msgs_per_subject": 1}),
                "max_msgs_per_subject = 1",
            ),
            (json!({"no_ack": true}), "no_ack"),
            (json!({"sealed": true}), "sealed"),
            (json!({"max_msg_size": 1_000}), "max_msg_size"),
            (json!({"retention": "interest"}), "no consumer"),
            (json!({"retention": "workqueue"}), "no consumer"),
        ] {
            let mut config = base.clone();
            let fields = config.as_object_mut().unwrap();
            fields.extend(change.as_object().unwrap().clone());
            let found = stream(config, 0).findings(1 << 20, MINUTE);
            assert_eq!(found.len(), 1, "{change}: {found:?}");
            assert!(found[0].contains(words), "{found:?}");
        }
        let full = json!({"name": "E", "discard": "new", "max_msgs": 3,
            "duplicate_window": TWO_MINUTES});
        assert!(stream(full, 0).findings(1 << 20, MINUTE).is_empty());
    }
}
