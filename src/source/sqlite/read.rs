//! Reading rows: forward, by key, by seq, and into gaps.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::decode::{self, UNREADABLE};
use super::error::Failure;
use super::{Sqlite, json};
use crate::event::{Payload, Timestamp};
use crate::source::{Body, INLINE_LIMIT, ReadBounds, Row, SourceError};

impl Sqlite {
    pub(super) async fn forward(
        &self,
        sink: &str,
        after: i64,
        bounds: ReadBounds,
        bare_keys: &[Arc<str>],
    ) -> Result<Vec<Row>, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let now = Timestamp::now();
            let query = sqlx::query(include_str!("sql/read.sql"))
                .bind(sink)
                .bind(now.to_string())
                .bind(INLINE_LIMIT as i64)
                .bind(after)
                .bind(json(bare_keys))
                .bind(i64::from(bounds.rows))
                .bind(i64::from(bounds.bodies));
            let rows = query.fetch_all(taken.sql()).await?;
            let mut rows = decoded(rows, now, false)?;
            rows.sort_by_key(|row| row.seq);
            taken.give_back();
            Ok(rows)
        };
        self.reader.limited("read", read).await
    }

    pub(super) async fn runs(
        &self,
        sink: &str,
        keys: &[(Arc<str>, i64)],
        per_key: u32,
    ) -> Result<Vec<Row>, SourceError> {
        let (unreadable, readable): (Vec<_>, Vec<_>) =
            keys.iter().partition(|(key, _)| key.contains(UNREADABLE));
        let read = async {
            let mut taken = self.reader.take().await?;
            let now = Timestamp::now();
            let query = sqlx::query(include_str!("sql/read_keys.sql"))
                .bind(sink)
                .bind(now.to_string())
                .bind(INLINE_LIMIT as i64)
                .bind(json(readable))
                .bind(i64::from(per_key));
            let rows = query.fetch_all(taken.sql()).await?;
            let rows = decoded(rows, now, false)?;
            taken.give_back();
            Ok(rows)
        };
        let mut rows = self.reader.limited("read keys", read).await?;
        for (key, from) in unreadable {
            rows.extend(self.unreadable_run(sink, key, *from, per_key).await?);
        }
        Ok(rows)
    }

    /// The run of a key that cannot be asked for as it is stored.
    async fn unreadable_run(
        &self,
        sink: &str,
        key: &str,
        from: i64,
        per_key: u32,
    ) -> Result<Vec<Row>, SourceError> {
        let readable = key.split(UNREADABLE).next().unwrap_or_default();
        let find = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/unreadable_key.sql"));
            let query = query.bind(readable).bind(from);
            let rows: Vec<(i64, Option<Vec<u8>>, bool)> = query.fetch_all(taken.sql()).await?;
            taken.give_back();
            let same = |bytes, blob| decode::key(bytes, blob).as_deref() == Some(key);
            let rows = rows
                .into_iter()
                .filter_map(|(seq, bytes, blob)| same(bytes, blob).then_some(seq));
            Ok(rows.collect::<Vec<i64>>())
        };
        let seqs = self.reader.limited("read an unreadable key", find).await?;
        let mut rows = self.by_seq(sink, &seqs, false).await?;
        rows.truncate(per_key as usize);
        Ok(rows)
    }

    /// `whole`: with bodies whatever their size and due time.
    pub(super) async fn by_seq(
        &self,
        sink: &str,
        seqs: &[i64],
        whole: bool,
    ) -> Result<Vec<Row>, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let now = Timestamp::now();
            let query = sqlx::query(include_str!("sql/read_seqs.sql"))
                .bind(sink)
                .bind(now.to_string())
                .bind(INLINE_LIMIT as i64)
                .bind(json(seqs))
                .bind(whole);
            let rows = query.fetch_all(taken.sql()).await?;
            let mut rows = decoded(rows, now, whole)?;
            rows.sort_by_key(|row| row.seq);
            taken.give_back();
            Ok(rows)
        };
        self.reader.limited("read rows", read).await
    }

    pub(super) async fn existing(
        &self,
        ranges: &[RangeInclusive<i64>],
        limit: u32,
    ) -> Result<Vec<(i64, Option<Arc<str>>)>, SourceError> {
        let ranges = ascending(ranges);
        let probe = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/probe.sql"));
            let query = query.bind(json(&ranges)).bind(i64::from(limit));
            let rows: Vec<(i64, Option<Vec<u8>>, bool)> = query.fetch_all(taken.sql()).await?;
            taken.give_back();
            let rows = rows.into_iter();
            Ok(rows
                .map(|(seq, key, blob)| (seq, decode::key(key, blob)))
                .collect())
        };
        self.reader.limited("look into gaps", probe).await
    }
}

/// Ranges in their order and without overlaps.
fn ascending(ranges: &[RangeInclusive<i64>]) -> Vec<(i64, i64)> {
    let mut sorted: Vec<(i64, i64)> = ranges
        .iter()
        .filter(|range| !range.is_empty())
        .map(|range| (*range.start(), *range.end()))
        .collect();
    sorted.sort_unstable();
    let mut merged: Vec<(i64, i64)> = Vec::with_capacity(sorted.len());
    for (first, last) in sorted {
        match merged.last_mut() {
            Some(previous) if first <= previous.1 => previous.1 = previous.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn decoded(rows: Vec<SqliteRow>, now: Timestamp, whole: bool) -> Result<Vec<Row>, Failure> {
    let rows = rows.into_iter();
    rows.map(|row| one(&row, now, whole).map_err(Failure::from))
        .collect()
}

/// The columns of `read.sql`, `read_keys.sql` and `read_seqs.sql`.
fn one(row: &SqliteRow, now: Timestamp, whole: bool) -> Result<Row, sqlx::Error> {
    let state: Option<&str> = row.try_get(6)?;
    let done = state.is_some_and(|state| state != "retry");
    let available: Vec<u8> = row.try_get(5)?;
    let next: Option<&str> = row.try_get(8)?;
    // A moment that cannot be read does not hold an event back.
    let due = decode::moment(&available).into_iter();
    let due = due
        .chain(next.and_then(|next| decode::moment(next.as_bytes())))
        .max();
    let skip: Option<String> = row.try_get(15)?;
    let due = due.filter(|_| skip.is_none());
    let due_in = due.map_or(Duration::ZERO, |due| decode::until(due, now));
    let body = match row.try_get::<Option<Vec<u8>>, _>(11)? {
        Some(payload) if whole || (due_in.is_zero() && !done) => Some(body(row, payload)?),
        _ => None,
    };
    Ok(Row {
        seq: row.try_get(0)?,
        id: decode::id(row.try_get(1)?),
        kind: decode::text(row.try_get(2)?),
        ordering_key: decode::key(row.try_get(3)?, row.try_get(4)?),
        due_in,
        attempts: decode::count(row.try_get(7)?),
        done,
        skip,
        size: row.try_get::<i64, _>(9)? as usize,
        body,
    })
}

fn body(row: &SqliteRow, payload: Vec<u8>) -> Result<Body, sqlx::Error> {
    let payload = Bytes::from(payload);
    let occurred: Option<Vec<u8>> = row.try_get(14)?;
    let headers: Option<Vec<u8>> = row.try_get(13)?;
    Ok(Body {
        payload: match row.try_get(10)? {
            true => Payload::Json(payload),
            false => Payload::Bytes(payload),
        },
        content_type: row.try_get::<Option<Vec<u8>>, _>(12)?.map(decode::text),
        headers: headers.map_or_else(|| "{}".to_owned(), decode::text),
        occurred_at: occurred
            .and_then(|at| decode::moment(&at))
            .unwrap_or(Timestamp(0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_and_merged() {
        #[allow(clippy::reversed_empty_ranges)]
        let ranges = [9..=12, 1..=3, 2..=5, 7..=6, 6..=6];
        assert_eq!(ascending(&ranges), [(1, 5), (6, 6), (9, 12)]);
    }
}
