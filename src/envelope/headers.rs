//! The headers of an outgoing event.
//!
//! | header | value |
//! |---|---|
//! | `Outbox-Kind` | the kind |
//! | `Outbox-Key` | the ordering key, percent-encoded; absent without a key |
//! | `Outbox-Seq` | place in the outbox |
//! | `Outbox-Source` | name of the source database |
//! | `Outbox-Occurred-At` | RFC 3339, microseconds, `Z` |
//! | `Outbox-Attempt` | charged failures + 1 |
//! | `Content-Type` | the column `content_type`, when set |
//!
//! In `Outbox-Key` every byte outside `A-Z a-z 0-9 - _ . ~` is written as `%XX`.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};

use crate::event::Event;
use crate::sink::{Delivery, PublishError};

use super::{encoded, invalid_header, invalid_subject, shown};

/// Beginnings of header names, in any case, that rows may not use: the relay's own, and the broker's, which
/// could overwrite a stream or defeat its dedupe.
const RESERVED: [&str; 2] = ["outbox-", "nats-"];

const CONTENT_TYPE: &str = "Content-Type";

/// Headers that a delivery has beside its row's, and room for what a sink adds.
const OWN: usize = 10;

/// A header: name and value.
pub type Header = (Cow<'static, str>, String);

/// The headers of a row, in the order in which they are stored.
///
/// # Errors
/// Rejected as `invalid_header`: the text is not a JSON object of strings, a name stands twice, a name is not
/// a token of RFC 9110, begins with `Nats-` or `Outbox-`, or a value would not arrive as it was stored.
pub fn row(stored: &str) -> Result<Vec<Header>, PublishError> {
    // By far the most common text; worth not starting the parser for.
    if stored == "{}" {
        return Ok(Vec::new());
    }
    let Strings(headers) = serde_json::from_str(stored).map_err(|error| {
        invalid_header(format!("headers are not an object of strings: {error}"))
    })?;
    for (at, (name, value)) in headers.iter().enumerate() {
        check_name(name)?;
        check_value(value)
            .map_err(|why| invalid_header(format!("value of header {} {why}", shown(name))))?;
        if headers[..at].iter().any(|(earlier, _)| earlier == name) {
            return Err(invalid_header(format!(
                "header {} stands twice",
                shown(name)
            )));
        }
    }
    Ok(headers)
}

/// All headers of a delivery: `row`, which [`row`] gave, and the relay's own.
///
/// # Errors
/// Rejected as `invalid_subject` when the kind cannot be sent, as `invalid_header` when the content type cannot.
pub fn all(delivery: &Delivery, row: Vec<Header>) -> Result<Vec<Header>, PublishError> {
    let event = &*delivery.event;
    let mut headers = row;
    headers.reserve(OWN);
    if let Some(content_type) = check_content_type(event, &headers)? {
        headers.push((Cow::Borrowed(CONTENT_TYPE), content_type.to_owned()));
    }
    check_value(&event.kind)
        .map_err(|why| invalid_subject(format!("kind {} {why}", shown(&event.kind))))?;
    let mut add = |name: &'static str, value: String| headers.push((Cow::Borrowed(name), value));
    add("Outbox-Kind", event.kind.clone());
    if let Some(key) = &event.ordering_key {
        let key = encoded(key);
        add("Outbox-Key", key.into_owned());
    }
    add("Outbox-Seq", event.seq.to_string());
    add("Outbox-Source", encoded(&delivery.source).into_owned());
    add("Outbox-Occurred-At", event.occurred_at.to_string());
    add("Outbox-Attempt", delivery.attempt.to_string());
    Ok(headers)
}

/// The content type to add to the row's headers, if its column is set and they do not have it already.
///
/// # Errors
/// Rejected as `invalid_header`: no header can carry it, or the row's headers name another one, which would
/// leave the receiver with a guess.
pub fn check_content_type<'a>(
    event: &'a Event,
    row: &[Header],
) -> Result<Option<&'a str>, PublishError> {
    let Some(value) = event.content_type.as_deref() else {
        return Ok(None);
    };
    check_value(value)
        .map_err(|why| invalid_header(format!("content type {} {why}", shown(value))))?;
    let given = row
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE));
    match given {
        Some((_, same)) if same == value => Ok(None),
        Some((_, other)) => Err(invalid_header(format!(
            "content type is {} in its column and {} among the headers",
            shown(value),
            shown(other)
        ))),
        None => Ok(Some(value)),
    }
}

/// A name must be a token (RFC 9110, section 5.6.2) and not reserved.
fn check_name(name: &str) -> Result<(), PublishError> {
    let is_token_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Err(invalid_header(format!(
            "header name {} is not made of letters, digits and !#$%&'*+-.^_`|~",
            shown(name)
        )));
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED.iter().any(|prefix| lower.starts_with(prefix)) {
        return Err(invalid_header(format!(
            "header {} is reserved: rows may not set Outbox-* or Nats-*",
            shown(name)
        )));
    }
    Ok(())
}

/// A value must reach the receiver as it was stored: line ends would begin another header, other control
/// characters are cut or refused by clients, and white space at the ends is trimmed by every reader.
fn check_value(value: &str) -> Result<(), &'static str> {
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err("has a control character");
    }
    if value.trim().len() != value.len() {
        return Err("begins or ends with white space, which receivers would not see");
    }
    Ok(())
}

/// A JSON object of strings, in order, repeated names included.
struct Strings(Vec<Header>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Strings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                let mut headers = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    headers.push((Cow::Owned(name), value));
                }
                Ok(Strings(headers))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use bytes::Bytes;
    use uuid::Uuid;

    use super::*;
    use crate::event::{Payload, Timestamp};
    use crate::sink::PublishErrorKind;

    fn delivery(event: impl FnOnce(&mut Event)) -> Delivery {
        let mut it = Event {
            seq: 42,
            id: Uuid::from_u128(1),
            kind: "auth.login".to_owned(),
            ordering_key: Some("käse 1".into()),
            payload: Payload::Json(Bytes::from_static(b"{}")),
            content_type: None,
            headers: "{}".to_owned(),
            occurred_at: Timestamp(1_700_000_000_123_456),
        };
        event(&mut it);
        Delivery {
            event: Arc::new(it),
            source: "orders".into(),
            attempt: 3,
            may_be_repeat: false,
            lease: crate::lease::Lease { shard: 0, token: 1 },
        }
    }

    fn code(error: &PublishError) -> &'static str {
        match error.kind {
            PublishErrorKind::Rejected { code } => code,
            _ => panic!("{error:?}"),
        }
    }

    #[test]
    fn a_delivery_carries_the_relays_headers_beside_its_own() {
        let delivery = delivery(|e| e.content_type = Some("application/cbor".to_owned()));
        let own = row(r#"{"traceparent":"00-aa-bb-01","x":"","note":"a\tb ü"}"#).unwrap();
        let headers = all(&delivery, own).unwrap();
        let text: Vec<String> = headers.iter().map(|(n, v)| format!("{n}: {v}")).collect();
        assert_eq!(
            text,
            [
                "traceparent: 00-aa-bb-01",
                "x: ",
                "note: a\tb ü",
                "Content-Type: application/cbor",
                "Outbox-Kind: auth.login",
                "Outbox-Key: k%C3%A4se%201",
                "Outbox-Seq: 42",
                "Outbox-Source: orders",
                "Outbox-Occurred-At: 2023-11-14T22:13:20.123456Z",
                "Outbox-Attempt: 3",
            ]
        );
    }

    #[test]
    fn no_key_no_key_header() {
        let headers = all(&delivery(|e| e.ordering_key = None), Vec::new()).unwrap();
        assert!(headers.iter().all(|(name, _)| name != "Outbox-Key"));
    }

    #[test]
    fn headers_that_would_not_arrive_as_stored_are_rejected_in_words() {
        let hostile = [
            "",
            "null",
            "[]",
            r#""text""#,
            r#"{"a":1}"#,
            r#"{"a":null}"#,
            r#"{"a":{"b":"c"}}"#,
            r#"{"a":"b""#,
            r#"{"a":"b"} x"#,
            r#"{"a":"1","a":"2"}"#,
            r#"{"":"v"}"#,
            r#"{"bad name":"v"}"#,
            r#"{"bad:name":"v"}"#,
            r#"{"é":"v"}"#,
            r#"{"a\r\nb":"v"}"#,
            r#"{"x":"a\r\nNats-Rollup: all"}"#,
            r#"{"x":"a\nb"}"#,
            r#"{"x":"a\u0000b"}"#,
            r#"{"x":"\u0085"}"#,
            r#"{"x":" a"}"#,
            r#"{"x":"a "}"#,
            r#"{"x":"a\u00a0"}"#,
            r#"{"x":"\t"}"#,
            r#"{"Nats-Rollup":"all"}"#,
            r#"{"nats-msg-id":"1"}"#,
            r#"{"NATS-Expected-Last-Sequence":"1"}"#,
            r#"{"outbox-seq":"1"}"#,
            r#"{"OUTBOX-Anything":"1"}"#,
        ];
        for stored in hostile {
            let error = row(stored).expect_err(stored);
            assert_eq!(code(&error), "invalid_header", "{stored}");
            assert!(!error.message.contains(['\r', '\n']), "{stored}");
        }
    }

    #[test]
    fn names_that_only_resemble_reserved_ones_pass() {
        let headers = row(r#"{"nats":"a","natsx-y":"b","x-outbox-z":"c","outbox":"d"}"#).unwrap();
        assert_eq!(headers.len(), 4);
    }

    #[test]
    fn a_kind_that_no_header_can_carry_is_an_invalid_subject() {
        for kind in ["a\nb", "a\0", " a", "a\u{7f}"] {
            let error = all(&delivery(|e| e.kind = kind.to_owned()), Vec::new()).unwrap_err();
            assert_eq!(code(&error), "invalid_subject", "{kind:?}");
        }
    }

    #[test]
    fn two_content_types_must_agree() {
        let with = |value: &str| delivery(|e| e.content_type = Some(value.to_owned()));
        let own = || row(r#"{"content-type":"text/plain"}"#).unwrap();
        let agreed = all(&with("text/plain"), own()).unwrap();
        assert_eq!(
            agreed
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case("content-type"))
                .count(),
            1
        );
        assert_eq!(
            code(&all(&with("text/html"), own()).unwrap_err()),
            "invalid_header"
        );
        assert_eq!(
            code(&all(&with("a\r\nb: c"), Vec::new()).unwrap_err()),
            "invalid_header"
        );
    }
}
