//! What was delivered, for `verify`: the history from its newest row backwards, marks and pending events page by page.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::decode;
use super::{Sqlite, json};
use crate::event::Timestamp;
use crate::source::SourceError;
use crate::source::trail::{Delivered, Hand, Known, Take, Tally, Window};

/// Rows read by one statement.
const PAGE: i64 = 10_000;

/// Rows of the history are in the order of time, unless somebody set the clock back: by this much it may have been.
const SET_BACK_US: i64 = 3_600 * 1_000_000;

impl Sqlite {
    pub(super) async fn walk_trail(
        &self,
        sink: &str,
        window: Window,
        take: Take<'_>,
    ) -> Result<(), SourceError> {
        let before = window.widened(SET_BACK_US).since;
        let mut below = i64::MAX;
        loop {
            let query = sqlx::query(include_str!("sql/trail_published.sql"))
                .bind(below)
                .bind(PAGE);
            let rows = self.page("walk the history", query, Receipt::of).await?;
            for receipt in &rows {
                below = receipt.number;
                if receipt.sink == sink
                    && window.contains(receipt.at)
                    && take(receipt.delivered(true)).is_break()
                {
                    return Ok(());
                }
            }
            let oldest = rows.iter().map(|receipt| receipt.at).min();
            if is_last(&rows) || oldest.is_some_and(|at| at < before) {
                break;
            }
        }
        let mut after = i64::MIN;
        loop {
            let query = sqlx::query(include_str!("sql/trail_marks.sql"))
                .bind(sink.to_owned())
                .bind(after)
                .bind(PAGE);
            let rows = self.page("walk the marks", query, Receipt::of_mark).await?;
            for mark in &rows {
                after = mark.seq;
                if window.contains(mark.at) && take(mark.delivered(false)).is_break() {
                    return Ok(());
                }
            }
            if is_last(&rows) {
                return Ok(());
            }
        }
    }

    pub(super) async fn count_trail(
        &self,
        sink: &str,
        window: Window,
    ) -> Result<Tally, SourceError> {
        let query = sqlx::query(include_str!("sql/trail_discarded.sql"))
            .bind(sink.to_owned())
            .bind(moment(window.since))
            .bind(moment(window.until));
        let count = |row: &SqliteRow| row.try_get::<i64, _>(0);
        let discarded = self.page("count discarded events", query, count).await?;
        let query = sqlx::query(include_str!("sql/trail_begins.sql"));
        let begins = |row: &SqliteRow| Ok(decoded(row.try_get(0)?));
        let begins = self.page("look at the history", query, begins).await?;
        let mut tally = Tally {
            pending: Vec::new(),
            discarded: discarded.first().map_or(0, |count| count.unsigned_abs()),
            reaches_back: begins.first().is_some_and(|at| *at < window.since),
        };
        let mut after = i64::MIN;
        loop {
            let query = sqlx::query(include_str!("sql/trail_pending.sql"))
                .bind(after)
                .bind(PAGE)
                .bind(sink.to_owned());
            let rows = self.page("count pending events", query, pending).await?;
            let last = is_last(&rows);
            for (seq, kind, occurred, done) in rows {
                after = seq;
                if !done && occurred.is_some_and(|at| window.contains(at)) {
                    tally.add(kind, 1);
                }
            }
            if last {
                return Ok(tally);
            }
        }
    }

    pub(super) async fn look_up(
        &self,
        events: &[(Option<i64>, Uuid)],
    ) -> Result<Vec<Option<Known>>, SourceError> {
        let pairs: Vec<_> = events
            .iter()
            .map(|(seq, id)| (seq, id.hyphenated().to_string()))
            .collect();
        let query = sqlx::query(include_str!("sql/trace.sql")).bind(json(pairs));
        type Places = (Option<Vec<u8>>, bool, bool);
        let places = |row: &SqliteRow| -> Result<Places, sqlx::Error> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
        };
        let found = self.page("look events up", query, places).await?;
        let known = found.into_iter().zip(events);
        let known = known.map(|((pending, published, discarded), (_, id))| {
            let pending = pending.is_some_and(|found| decode::id(&found) == *id);
            Known::of(pending, published, discarded)
        });
        Ok(known.collect())
    }

    pub(super) async fn list_hands(&self, seqs: &[i64]) -> Result<Vec<(i64, Hand)>, SourceError> {
        let query = sqlx::query(include_str!("sql/hands.sql")).bind(json(seqs));
        let hand = |row: &SqliteRow| -> Result<_, sqlx::Error> {
            let action: String = row.try_get(1)?;
            Ok(Hand::of(&action).zip(row.try_get(0)?))
        };
        let found = self.page("look into the audit", query, hand).await?;
        Ok(found
            .into_iter()
            .flatten()
            .map(|(hand, seq)| (seq, hand))
            .collect())
    }

    /// One short read.
    async fn page<T>(
        &self,
        what: &str,
        query: sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
        decode: impl Fn(&SqliteRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let rows = query.fetch_all(taken.sql()).await?;
            taken.give_back();
            Ok(rows.iter().map(decode).collect::<Result<Vec<T>, _>>()?)
        };
        self.reader.limited(what, read).await
    }
}

fn is_last<T>(page: &[T]) -> bool {
    (page.len() as i64) < PAGE
}

/// A row of the history, or a mark.
struct Receipt {
    number: i64,
    seq: i64,
    id: Uuid,
    /// Empty for a mark, which was asked for by its sink.
    sink: String,
    at: Timestamp,
    stream: Option<String>,
    position: Option<i64>,
    ordering_key: Option<String>,
}

impl Receipt {
    /// The columns of `trail_published.sql`.
    fn of(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            number: row.try_get(0)?,
            seq: row.try_get(1)?,
            id: decode::id(row.try_get(2)?),
            sink: row.try_get(3)?,
            at: decoded(row.try_get(4)?),
            stream: row.try_get(5)?,
            position: row.try_get(6)?,
            ordering_key: row.try_get::<Option<Vec<u8>>, _>(7)?.map(decode::text),
        })
    }

    /// The columns of `trail_marks.sql`.
    fn of_mark(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            number: 0,
            seq: row.try_get(0)?,
            id: decode::id(row.try_get(1)?),
            sink: String::new(),
            at: decoded(row.try_get(2)?),
            stream: row.try_get(3)?,
            position: row.try_get(4)?,
            ordering_key: row.try_get::<Option<Vec<u8>>, _>(5)?.map(decode::text),
        })
    }

    fn delivered(&self, receipt: bool) -> Delivered<'_> {
        Delivered {
            seq: self.seq,
            id: self.id,
            ordering_key: self.ordering_key.as_deref(),
            at: self.at,
            stream: self.stream.as_deref(),
            position: self.position.and_then(|at| u64::try_from(at).ok()),
            receipt,
        }
    }
}

/// A moment that the relay wrote.
fn decoded(text: String) -> Timestamp {
    decode::moment(text.as_bytes()).unwrap_or(Timestamp(0))
}

type Pending = (i64, String, Option<Timestamp>, bool);

fn pending(row: &SqliteRow) -> Result<Pending, sqlx::Error> {
    Ok((
        row.try_get(0)?,
        decode::text(row.try_get(1)?),
        decode::moment(row.try_get(2)?),
        row.try_get(3)?,
    ))
}

/// As the relay writes moments, so that the order of the text is theirs, whatever the end of a window is.
fn moment(at: Timestamp) -> String {
    const YEAR_9999_US: i64 = 253_402_300_799_000_000;
    Timestamp(at.0.clamp(0, YEAR_9999_US)).to_string()
}
