//! Values as PostgreSQL holds them: times with their infinities, and text without zero bytes.

use std::borrow::Cow;
use std::time::Duration;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

use crate::event::Timestamp;

/// 2000-01-01 in microseconds since 1970, where PostgreSQL counts from.
const EPOCH_US: i64 = 946_684_800_000_000;

/// `timestamptz`, raw: a calendar type would fail on `infinity` and on the year 290000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(i64);

impl Moment {
    /// Microseconds since 1970; the infinities are the ends of the range.
    pub(super) fn timestamp(self) -> Timestamp {
        match self.0 {
            i64::MIN | i64::MAX => Timestamp(self.0),
            since_2000 => Timestamp(since_2000.saturating_add(EPOCH_US)),
        }
    }

    /// Time from `now` until this moment; zero when it is past.
    pub(super) fn after(self, now: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0))
    }

    /// Seconds from this moment until `now`.
    pub(super) fn age_s(self, now: Self) -> f64 {
        now.0.saturating_sub(self.0) as f64 / 1e6
    }
}

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Self {
        match at.0 {
            i64::MIN | i64::MAX => Self(at.0),
            since_1970 => Self(since_1970.saturating_sub(EPOCH_US)),
        }
    }
}

impl Type<Postgres> for Moment {
    fn type_info() -> PgTypeInfo {
        // timestamptz, fixed in every server.
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl<'r> Decode<'r, Postgres> for Moment {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => {
                let bytes: [u8; 8] = value.as_bytes()?.try_into()?;
                Ok(Self(i64::from_be_bytes(bytes)))
            }
            PgValueFormat::Text => Err("a time was asked for in binary and came as text".into()),
        }
    }
}

impl Encode<'_, Postgres> for Moment {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }
}

/// A span in microseconds for SQL, at most a hundred years: beyond that its timestamps end.
pub(super) fn micros(span: Duration) -> i64 {
    const CENTURY_US: i64 = 100 * 366 * 86_400 * 1_000_000;
    i64::try_from(span.as_micros()).map_or(CENTURY_US, |us| us.min(CENTURY_US))
}

/// Text that PostgreSQL takes: no zero byte, and at most `limit` characters.
pub(super) fn clean(text: &str, limit: usize) -> Cow<'_, str> {
    // No text has more characters than bytes.
    if text.len() <= limit && !text.contains('\0') {
        return Cow::Borrowed(text);
    }
    let kept = text.chars().filter(|c| *c != '\0');
    Cow::Owned(kept.take(limit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_survive_both_ways() {
        for end in [i64::MIN, i64::MAX] {
            assert_eq!(Moment(end).timestamp(), Timestamp(end));
            assert_eq!(Moment::from(Timestamp(end)), Moment(end));
        }
        assert_eq!(
            Moment(0).timestamp().to_string(),
            "2000-01-01T00:00:00.000000Z"
        );
        assert_eq!(Moment::from(Timestamp(EPOCH_US)), Moment(0));
    }

    #[test]
    fn spans_never_overflow() {
        assert_eq!(Moment(i64::MIN).after(Moment(5)), Duration::ZERO);
        assert_eq!(
            Moment(i64::MAX).after(Moment(-5)),
            Duration::from_micros(i64::MAX as u64)
        );
        assert!(micros(Duration::MAX) > 0);
        assert_eq!(micros(Duration::from_secs(2)), 2_000_000);
    }

    #[test]
    fn error_text_loses_zero_bytes_and_its_tail() {
        assert_eq!(clean("a\0b", 10), "ab");
        assert_eq!(clean(&"é".repeat(3_000), 2_048).chars().count(), 2_048);
    }
}
