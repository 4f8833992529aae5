//! What goes out for an event: headers, subject, message id. Pure; every sink reads its events through this.
//!
//! The body is the payload as it was written and needs nothing from here. Headers are the row's own
//! ([`headers::row`]) plus the relay's ([`headers::all`]); a row that asks for headers a receiver could not
//! read as they were stored, or that belong to the relay or the broker, is rejected in words. A subject
//! is made from a [`Template`] that was parsed at start.
//!
//! An event that cannot go out is always a [`PublishError`] of kind `Rejected` with one of the codes
//! below, never a panic and never a changed value.

use std::borrow::Cow;
use std::fmt::Write as _;

use uuid::Uuid;

use crate::sink::PublishError;

pub mod headers;
mod subject;

pub use subject::{MAX_SUBJECT_BYTES, Template, TemplateError};

/// Code of an event (body and headers together) that is larger than the destination allows.
pub const TOO_LARGE: &str = "too_large";

/// Code of an event whose kind, key or headers do not make a valid subject.
pub const INVALID_SUBJECT: &str = "invalid_subject";

/// Code of an event with headers that cannot be sent as they were stored.
pub const INVALID_HEADER: &str = "invalid_header";

/// The identity by which destinations recognise a repeated event: `<source>:<id>`, the same on every attempt
/// and different for every source.
pub fn message_id(source: &str, id: Uuid) -> String {
    let source = encoded(source);
    let mut text = String::with_capacity(source.len() + 1 + uuid::fmt::Hyphenated::LENGTH);
    // Writing to a String cannot fail.
    let _ = write!(text, "{source}:{id}");
    text
}

/// What [`message_id`] made for an event of `source`: its id, and whether it is a replay (`:r<n>` at the end). `None`
/// for any other text.
#[cfg(any(feature = "nats", test))]
pub(crate) fn event_of(source: &str, message_id: &str) -> Option<(Uuid, bool)> {
    let rest = message_id
        .strip_prefix(&*encoded(source))?
        .strip_prefix(':')?;
    let (id, replay) = match rest.split_once(":r") {
        Some((id, number)) => (id, number.parse::<u32>().map(|_| true).ok()?),
        None => (rest, false),
    };
    Some((Uuid::try_parse(id).ok()?, replay))
}

/// The characters that RFC 3986 calls unreserved: they are never percent-encoded in a header.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

/// `text` as the headers `Outbox-Key` and `Outbox-Source` have it.
pub(crate) fn encoded(text: &str) -> Cow<'_, str> {
    percent_encoded(text, is_unreserved)
}

/// Text with `%41` written out; `None` when that is no UTF-8.
#[cfg(any(feature = "cli", feature = "nats", test))]
pub(crate) fn decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = bytes
            .get(at + 1..at + 3)
            .filter(|_| *byte == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(hex.unwrap_or(*byte));
        at += if hex.is_some() { 3 } else { 1 };
    }
    String::from_utf8(decoded).ok()
}

/// `text` with every byte of its UTF-8 form that `keep` refuses written as `%XX` (RFC 3986, section 2.1).
fn percent_encoded(text: &str, keep: fn(u8) -> bool) -> Cow<'_, str> {
    // Nearly every name and key is made of plain letters.
    if text.bytes().all(keep) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if keep(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    Cow::Owned(out)
}

/// `text` for a message: quoted, control characters escaped, at most 80 characters.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(80).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

fn invalid_header(message: String) -> PublishError {
    PublishError::rejected(INVALID_HEADER, message)
}

fn invalid_subject(message: String) -> PublishError {
    PublishError::rejected(INVALID_SUBJECT, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_message_id_names_source_and_event() {
        let id = Uuid::from_u128(7);
        assert_eq!(
            message_id("orders", id),
            "orders:00000000-0000-0000-0000-000000000007"
        );
        // An embedder may give any name: it must not break the header.
        assert!(message_id("a:b\r\n", id).starts_with("a%3Ab%0D%0A:"));
    }

    #[test]
    fn a_message_id_leads_back_to_its_event() {
        let id = Uuid::from_u128(7);
        for source in ["orders", "a:b r1"] {
            let text = message_id(source, id);
            assert_eq!(event_of(source, &text), Some((id, false)));
            assert_eq!(event_of(source, &format!("{text}:r12")), Some((id, true)));
            for other in [format!("{text}:r"), format!("{text}:x"), format!("x{text}")] {
                assert_eq!(event_of(source, &other), None, "{other}");
            }
        }
        assert_eq!(event_of("order", &message_id("orders", id)), None);
        assert_eq!(decoded(&encoded("ä/ %")).as_deref(), Some("ä/ %"));
        assert_eq!(decoded("%FF"), None);
    }

    #[test]
    fn percent_encoding_keeps_unreserved_bytes_and_writes_the_rest_in_upper_case_hex() {
        assert_eq!(percent_encoded("a-Z_9.~", is_unreserved), "a-Z_9.~");
        assert_eq!(
            percent_encoded("ä/ %\n", is_unreserved),
            "%C3%A4%2F%20%25%0A"
        );
    }
}
