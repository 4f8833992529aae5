//! The event: one row of the outbox, as it was written.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use uuid::Uuid;

/// One row of the outbox.
///
/// Everything is kept as the writer stored it: the payload byte for byte, the headers as the JSON text of
/// the column. Nothing here is checked yet; a sink checks what it is about to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Place in the outbox; events of one ordering key are delivered in this order.
    pub seq: i64,
    /// Stable identity, the same on every attempt.
    pub id: Uuid,
    /// What happened, for example `auth.login.create`.
    pub kind: String,
    /// Events of one key keep their order; `None` has no order.
    pub ordering_key: Option<Arc<str>>,
    /// The body.
    pub payload: Payload,
    /// The writer's content type, if it gave one.
    pub content_type: Option<String>,
    /// The row's headers: JSON text, meant to be an object of strings.
    pub headers: String,
    /// When it happened, by the writer's word.
    pub occurred_at: Timestamp,
}

impl Event {
    /// The request id among the headers, if the writer stored one. Parses the headers, unless they are empty.
    pub fn request_id(&self) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Known {
            request_id: Option<String>,
        }
        if self.headers == "{}" {
            return None;
        }
        serde_json::from_str::<Known>(&self.headers)
            .ok()?
            .request_id
    }

    /// Bytes this event occupies in memory, for the budgets (an estimate that never falls below the payload).
    pub fn weight(&self) -> usize {
        const FIXED: usize = 256;
        FIXED
            + self.payload.as_bytes().len()
            + self.headers.len()
            + self.kind.len()
            + self.ordering_key.as_deref().map_or(0, str::len)
    }
}

/// The body of an event, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// JSON text, byte for byte (white space, key order and number spelling untouched).
    Json(Bytes),
    /// Any bytes.
    Bytes(Bytes),
}

impl Payload {
    /// The bytes to send.
    pub fn as_bytes(&self) -> &Bytes {
        match self {
            Self::Json(bytes) | Self::Bytes(bytes) => bytes,
        }
    }
}

/// Microseconds since 1970-01-01T00:00:00Z. The whole range of `i64` is allowed, since a row may hold
/// `infinity` or a year that no calendar library takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

const RFC3339_MICROS: &[BorrowedFormatItem<'static>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

impl Timestamp {
    /// The present, by this machine's clock.
    pub fn now() -> Self {
        let nanos = OffsetDateTime::now_utc().unix_timestamp_nanos();
        Self((nanos / 1_000) as i64)
    }

    /// From RFC 3339 text; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        let micros = at.unix_timestamp_nanos().div_euclid(1_000);
        i64::try_from(micros).ok().map(Self)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with six digits; `infinity` or `-infinity` for what has no such form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0_u8; 32];
        let written = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000)
            .ok()
            // RFC 3339 knows years of four digits and no sign.
            .filter(|at| (0..=9_999).contains(&at.year()))
            .and_then(|at| at.format_into(&mut &mut text[..], RFC3339_MICROS).ok())
            .and_then(|length| std::str::from_utf8(&text[..length]).ok());
        match written {
            Some(text) => f.write_str(text),
            None if self.0 > 0 => f.write_str("infinity"),
            None => f.write_str("-infinity"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn timestamps_print_as_rfc3339_with_microseconds() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(
            Timestamp(1_700_000_000_123_456).to_string(),
            "2023-11-14T22:13:20.123456Z"
        );
    }

    #[test]
    fn timestamps_outside_the_calendar_are_words_not_panics() {
        assert_eq!(Timestamp(i64::MAX).to_string(), "infinity");
        assert_eq!(Timestamp(i64::MIN).to_string(), "-infinity");
        // 2 BC: the year -1.
        assert_eq!(Timestamp(-62_198_755_200_000_000).to_string(), "-infinity");
    }
}
