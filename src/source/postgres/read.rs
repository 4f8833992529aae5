//! Reading rows, with and without their bodies.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::postgres::PgRow;
use sqlx::{Row as _, query};

use super::Postgres;
use super::value::Moment;
use crate::event::Payload;
use crate::source::{Body, INLINE_LIMIT, ReadBounds, Row, SourceError};

const READING: &str = "reading events";
const PROBING: &str = "looking into gaps";

impl Postgres {
    pub(super) async fn read_forward(
        &self,
        sink: &str,
        after: i64,
        bounds: ReadBounds,
        bare_keys: &[Arc<str>],
    ) -> Result<Vec<Row>, SourceError> {
        let bare: Vec<&str> = bare_keys.iter().map(|key| &**key).collect();
        let call = query(self.sql.read.text())
            .bind(sink)
            .bind(after)
            .bind(i64::from(bounds.rows))
            .bind(bare)
            .bind(INLINE_LIMIT as i32)
            .bind(i64::from(bounds.bodies));
        self.decode(self.relay.rows_at_home(READING, call).await?)
    }

    pub(super) async fn read_runs(
        &self,
        sink: &str,
        keys: &[(Arc<str>, i64)],
        per_key: u32,
    ) -> Result<Vec<Row>, SourceError> {
        let (keys, from): (Vec<&str>, Vec<i64>) =
            keys.iter().map(|(key, from)| (&**key, *from)).unzip();
        let call = query(self.sql.read_keys.text())
            .bind(sink)
            .bind(keys)
            .bind(from)
            .bind(i64::from(per_key))
            .bind(INLINE_LIMIT as i32);
        self.decode(self.relay.rows_at_home(READING, call).await?)
    }

    pub(super) async fn read_named(
        &self,
        sink: &str,
        seqs: &[i64],
    ) -> Result<Vec<Row>, SourceError> {
        let call = query(self.sql.read_seqs.text())
            .bind(sink)
            .bind(seqs.to_vec());
        self.decode(self.relay.rows_at_home(READING, call).await?)
    }

    pub(super) async fn probe_ranges(
        &self,
        ranges: &[RangeInclusive<i64>],
        limit: u32,
    ) -> Result<Vec<(i64, Option<Arc<str>>)>, SourceError> {
        let (low, high): (Vec<i64>, Vec<i64>) = ranges
            .iter()
            .map(|range| (*range.start(), *range.end()))
            .unzip();
        let call = query(self.sql.probe.text())
            .bind(low)
            .bind(high)
            .bind(i64::from(limit));
        let mut found = Vec::new();
        for row in self.relay.rows(PROBING, call).await? {
            let key: Option<String> = self.column(PROBING, &row, 1)?;
            found.push((self.column(PROBING, &row, 0)?, key.map(Arc::from)));
        }
        // Ranges may overlap; a row is one row.
        found.dedup_by_key(|(seq, _)| *seq);
        Ok(found)
    }

    fn decode(&self, rows: Vec<PgRow>) -> Result<Vec<Row>, SourceError> {
        rows.iter()
            .map(|row| decode(row).map_err(|cause| self.refused(READING, cause)))
            .collect()
    }
}

/// The columns of `read.sql`, `read_keys.sql` and `read_seqs.sql`, which are the same.
fn decode(row: &PgRow) -> Result<Row, sqlx::Error> {
    let available_at: Moment = row.try_get(4)?;
    let next_at: Option<Moment> = row.try_get(5)?;
    let now: Moment = row.try_get(6)?;
    let attempts: i64 = row.try_get(7)?;
    let done: bool = row.try_get(8)?;
    let size: Option<i32> = row.try_get(9)?;
    let due = next_at.map_or(available_at, |next_at| next_at.max(available_at));
    let key: Option<String> = row.try_get(3)?;
    let skip: Option<String> = row.try_get(16)?;
    let at_once = done || skip.is_some();
    Ok(Row {
        seq: row.try_get(0)?,
        id: row.try_get(1)?,
        kind: row.try_get(2)?,
        ordering_key: key.map(Arc::from),
        due_in: if at_once {
            Duration::ZERO
        } else {
            due.after(now)
        },
        attempts: u32::try_from(attempts.max(0)).unwrap_or(u32::MAX),
        done,
        skip,
        size: size
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(0),
        body: if row.try_get(10)? { body(row)? } else { None },
    })
}

fn body(row: &PgRow) -> Result<Option<Body>, sqlx::Error> {
    let Some(payload) = payload(row.try_get(11)?, row.try_get(12)?) else {
        return Ok(None);
    };
    let occurred_at: Moment = row.try_get(15)?;
    Ok(Some(Body {
        payload,
        content_type: row.try_get(13)?,
        headers: row.try_get(14)?,
        occurred_at: occurred_at.timestamp(),
    }))
}

/// The body of a row in memory, from its parts.
fn payload(json: Option<String>, bytes: Option<Vec<u8>>) -> Option<Payload> {
    match (json, bytes) {
        (Some(text), _) => Some(Payload::Json(Bytes::from(text))),
        (None, Some(bytes)) => Some(Payload::Bytes(Bytes::from(bytes))),
        (None, None) => None,
    }
}
