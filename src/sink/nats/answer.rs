//! What a server's answer to a publish means. Pure.
//!
//! Error codes are those of nats-server's `server/errors.json`. Which of them are the event's own fault was
//! tried against servers 2.9 and 2.15; a code that nobody thought of is charged to the event and tried again.

use serde::Deserialize;

use crate::envelope;
use crate::sink::{PublishError, Receipt};

/// An acknowledgement or a refusal, as JetStream writes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Ack {
    #[serde(default)]
    stream: Option<String>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    #[serde(default)]
    error: Option<ApiError>,
}

/// An error of the JetStream API.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ApiError {
    /// As in HTTP.
    #[serde(default)]
    pub(super) code: u32,
    /// What exactly.
    #[serde(default)]
    pub(super) err_code: u32,
    /// In the server's words.
    #[serde(default)]
    pub(super) description: String,
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (code {})", self.description, self.err_code)
    }
}

impl Ack {
    /// Reads an answer; `None` when it does not come from a stream.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload)
            .ok()
            .filter(|ack: &Self| ack.stream.is_some() || ack.error.is_some())
    }

    /// What was refused.
    pub(super) fn error(&self) -> Option<&ApiError> {
        self.error.as_ref()
    }

    /// Place in the stream; 0: none.
    pub(super) fn place(&self) -> u64 {
        self.seq
    }

    /// Another stream than this said it.
    pub(super) fn is_not_of(&self, stream: &str) -> bool {
        self.stream.as_deref().is_some_and(|other| other != stream)
    }

    /// The stream had it already.
    pub(super) fn is_duplicate(&self) -> bool {
        self.duplicate
    }

    /// What it means for an event that should be in `expected`.
    pub(super) fn judge(self, expected: &str, subject: &str) -> Result<Receipt, PublishError> {
        if let Some(error) = self.error {
            return Err(refused(&error, expected, subject));
        }
        let stream = self.stream.unwrap_or_default();
        if stream != expected {
            return Err(PublishError::unavailable(format!(
                "subject {subject} belongs to stream {stream}, not to {expected}: give the subject to {expected} \
                 or name {stream} in the configuration"
            )));
        }
        if self.seq == 0 {
            // Seen when the server still remembers the id of a message that it never stored.
            return Err(PublishError::unknown(format!(
                "stream {stream} answered without a sequence (duplicate: {}), so it may not have the event",
                self.duplicate
            )));
        }
        Ok(Receipt {
            stream: Some(stream),
            position: Some(self.seq),
            duplicate: self.duplicate,
        })
    }
}

/// A stream that is not the expected one refused the event.
pub(super) fn belongs_elsewhere(error: &ApiError, stream: &str, subject: &str) -> PublishError {
    PublishError::unavailable(format!(
        "subject {subject} belongs to another stream than {stream}: {error}"
    ))
}

/// What a refusal means for the event on this subject.
pub(super) fn refused(error: &ApiError, stream: &str, subject: &str) -> PublishError {
    match error.err_code {
        // Message size exceeds maximum allowed; header size exceeds maximum allowed of 64k.
        10_054 | 10_097 => PublishError::rejected(
            envelope::TOO_LARGE,
            format!("stream {stream} refused the event: {error}"),
        ),
        _ if is_elsewhere(error) => belongs_elsewhere(error, stream, subject),
        code if is_no_room(code) || error.code == 429 => PublishError::full(format!(
            "stream {stream} has no room for events now: {error}"
        )),
        code if is_about_the_stream(code) || error.code >= 500 => {
            PublishError::unavailable(format!("stream {stream} takes no events now: {error}"))
        }
        _ => PublishError::retryable(format!("stream {stream} refused the event: {error}")),
    }
}

/// The subject leads to another stream: "expected stream does not match".
pub(super) fn is_elsewhere(error: &ApiError) -> bool {
    error.err_code == 10_060
}

/// Codes that say that there is no room or no time for any event.
fn is_no_room(err_code: u32) -> bool {
    matches!(
        err_code,
        10_002  // account resources exceeded
        | 10_023 // insufficient resources
        | 10_028 // memory resources exceeded
        | 10_047 // storage resources exceeded
        | 10_077 // store failed: full, for instance
        | 10_167 // too many requests
    )
}

/// Codes that say something about the stream, the account or the server, whatever HTTP code stands beside.
fn is_about_the_stream(err_code: u32) -> bool {
    matches!(
        err_code,
        10_008 // system temporarily unavailable
        | 10_009 // cluster without leader
        | 10_035 // account not found
        | 10_039 // JetStream not enabled for account
        | 10_053 // message not stored, server shutting down
        | 10_058 // stream name in use
        | 10_059 // stream not found
        | 10_074 // replicas
        | 10_076 // JetStream not enabled
        | 10_109 // sealed
        | 10_118 // stream offline
        | 10_158 // this id is being stored right now
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::sink::PublishErrorKind as Kind;

    fn judge(json: &str) -> Result<Receipt, Kind> {
        Ack::read(json.as_bytes())
            .unwrap()
            .judge("EVT", "evt.a")
            .map_err(|error| error.kind)
    }

    fn error(code: u32, err_code: u32) -> Kind {
        judge(&format!(
            r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"words"}},"stream":"EVT","seq":0}}"#
        ))
        .unwrap_err()
    }

    #[test]
    fn an_acknowledgement_of_the_expected_stream_is_a_receipt() {
        let receipt = judge(r#"{"stream":"EVT","seq":7,"domain":"hub","future":1}"#).unwrap();
        assert_eq!((receipt.position, receipt.duplicate), (Some(7), false));
        let again = judge(r#"{"stream":"EVT","seq":7,"duplicate":true}"#).unwrap();
        assert!(again.duplicate);
    }

    #[test]
    fn a_duplicate_without_a_sequence_is_no_success() {
        for json in [
            r#"{"stream":"EVT","seq":0,"duplicate":true}"#,
            r#"{"stream":"EVT","duplicate":true}"#,
            r#"{"stream":"EVT"}"#,
        ] {
            assert_eq!(judge(json), Err(Kind::Unknown), "{json}");
        }
    }

    #[test]
    fn another_stream_is_a_matter_of_configuration() {
        assert_eq!(
            judge(r#"{"stream":"OTHER","seq":7}"#),
            Err(Kind::Unavailable {
                connection_lost: false
            })
        );
    }

    #[test]
    fn answers_that_no_stream_gave_are_not_answers() {
        for foreign in ["", "ok", "{}", "[]", "null", r#"{"seq":7}"#, "\u{0}"] {
            assert_eq!(Ack::read(foreign.as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn refusals_are_charged_to_whom_they_belong() {
        let unavailable = Kind::Unavailable {
            connection_lost: false,
        };
        for (code, err_code) in [
            (400, 10_002),
            (503, 10_077),
            (500, 10_077),
            (500, 10_023),
            (500, 10_028),
            (500, 10_047),
            (429, 10_167),
            (429, 99_999),
        ] {
            assert_eq!(error(code, err_code), Kind::Full, "{code} {err_code}");
        }
        for (code, err_code) in [
            (400, 10_060),
            (409, 10_158),
            (503, 10_039),
            (400, 10_109),
            (500, 99_999),
        ] {
            assert_eq!(error(code, err_code), unavailable, "{code} {err_code}");
        }
        for (code, err_code) in [(400, 10_054), (400, 10_097)] {
            assert_eq!(error(code, err_code), Kind::Rejected { code: "too_large" });
        }
        for (code, err_code) in [(400, 99_999), (404, 0), (400, 10_071)] {
            assert_eq!(error(code, err_code), Kind::Retryable, "{code} {err_code}");
        }
    }
}
