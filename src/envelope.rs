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

/// The characters that RFC 3986 calls unreserved: they are never percent-encoded in a header.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

/// `text` as the headers `Outbox-Key` and `Outbox-Source` have it.
pub(crate) fn encoded(text: &str) -> Cow<'_, str> {
    percent_encoded(text, is_unreserved)
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
    fn percent_encoding_keeps_unreserved_bytes_and_writes_the_rest_in_upper_case_hex() {
        assert_eq!(percent_encoded("a-Z_9.~", is_unreserved), "a-Z_9.~");
        assert_eq!(
            percent_encoded("ä/ %\n", is_unreserved),
            "%C3%A4%2F%20%25%0A"
        );
    }
}
