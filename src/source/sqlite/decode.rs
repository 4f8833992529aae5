//! From stored values to types. SQLite lets any value stand in any column, and text need not be UTF-8, so
//! nothing here fails: what cannot be read becomes something that a later check can refuse.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::event::Timestamp;
use crate::lease::fnv1a64;

/// Stands for bytes that are no text.
pub(super) const UNREADABLE: char = '\u{fffd}';

/// Text as it is, or with [`UNREADABLE`] where it is none.
pub(super) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// An ordering key. A blob is marked as unreadable even if its bytes are text, because it is another key
/// than that text.
pub(super) fn key(bytes: Option<Vec<u8>>, blob: bool) -> Option<Arc<str>> {
    let mut key = text(bytes?);
    if blob {
        key.push(UNREADABLE);
    }
    Some(Arc::from(key))
}

/// The UUID, or one made from the bytes that are none: always the same for the same bytes.
pub(super) fn id(bytes: &[u8]) -> Uuid {
    if let Ok(id) = Uuid::try_parse_ascii(bytes) {
        return id;
    }
    if let Ok(id) = Uuid::from_slice(bytes) {
        return id;
    }
    let mut more = bytes.to_vec();
    more.push(0);
    let (high, low) = (fnv1a64(bytes), fnv1a64(&more));
    uuid::Builder::from_custom_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
        .into_uuid()
}

/// A moment, if the text is one: ISO 8601 in UTC or with an offset.
pub(super) fn moment(bytes: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(bytes).ok()?;
    match text {
        "infinity" => return Some(Timestamp(i64::MAX)),
        "-infinity" => return Some(Timestamp(i64::MIN)),
        _ => {}
    }
    Timestamp::parse(text)
}

/// A moment as rows sort by it: without trailing zeros and Z, so that fewer digits are not later.
pub(super) fn sortable(at: Timestamp) -> String {
    let text = at.to_string();
    match text.strip_suffix('Z') {
        Some(text) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

/// `span` after `at`.
pub(super) fn later(at: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp(at.0.saturating_add(micros))
}

/// `span` before `at`.
pub(super) fn earlier(at: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp(at.0.saturating_sub(micros))
}

/// From `now` until `at`; zero when that is past.
pub(super) fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros(at.0.saturating_sub(now.0).max(0) as u64)
}

/// From `at` until `now` in seconds; negative when `at` is still to come.
pub(super) fn seconds_since(at: Timestamp, now: Timestamp) -> f64 {
    now.0.saturating_sub(at.0) as f64 / 1e6
}

/// A counter of ours, whatever the column holds.
pub(super) fn count(value: Option<i64>) -> u32 {
    value.map_or(0, |value| value.clamp(0, i64::from(u32::MAX)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_in_every_spelling_of_iso_8601() {
        let expected = Some(Timestamp(1_700_000_000_120_000));
        for text in [
            "2023-11-14T22:13:20.12Z",
            "2023-11-14T22:13:20.120Z",
            "2023-11-14T22:13:20.120000Z",
            "2023-11-14T23:13:20.12+01:00",
        ] {
            assert_eq!(moment(text.as_bytes()), expected, "{text}");
        }
        for text in ["", "yesterday", "2023-13-14T22:13:20Z", "2023-11-14"] {
            assert_eq!(moment(text.as_bytes()), None, "{text}");
        }
        assert_eq!(moment(b"\xff"), None);
    }

    #[test]
    fn sortable_moments_sort_as_rows_do() {
        let sortable = |micros| sortable(Timestamp(micros));
        assert_eq!(sortable(1_700_000_000_120_000), "2023-11-14T22:13:20.12");
        assert_eq!(sortable(1_700_000_000_000_000), "2023-11-14T22:13:20");
        assert!(*"2023-11-14T22:13:20.120" >= *sortable(1_700_000_000_120_000));
        assert!(*"2023-11-14T22:13:20.119999" < *sortable(1_700_000_000_120_000));
        assert_eq!(sortable(1_699_999_200_000_000), "2023-11-14T22:00:00");
    }

    #[test]
    fn what_is_no_uuid_still_names_its_row() {
        let id_text = "0190163d-8694-739b-aea5-966c26f8ad91";
        assert_eq!(id(id_text.as_bytes()).to_string(), id_text);
        assert_eq!(id(id_text.to_uppercase().as_bytes()).to_string(), id_text);
        assert_eq!(id(&[7; 16]), Uuid::from_bytes([7; 16]));
        assert_eq!(id(b"order-1"), id(b"order-1"));
        assert_ne!(id(b"order-1"), id(b"order-2"));
    }

    #[test]
    fn a_blob_is_another_key_than_its_text() {
        assert_eq!(key(Some(b"a".to_vec()), false).as_deref(), Some("a"));
        assert_ne!(key(Some(b"a".to_vec()), true).as_deref(), Some("a"));
        assert_eq!(
            key(Some(b"a\xff".to_vec()), false).as_deref(),
            Some("a\u{fffd}")
        );
        assert_eq!(key(None, false), None);
    }
}
