//! The sweep, due times and the backlog.

use crate::event::Timestamp;
use crate::source::{Backlog, Begun, BegunEvent, Due, Head, Share, SourceError, Sweep, SweepMark};

use super::Sqlite;
use super::decode;

/// A key as it is stored: its bytes, and that they are a blob.
type StoredKey = (Vec<u8>, bool);

impl Sqlite {
    pub(super) async fn sweep(
        &self,
        sink: &str,
        mark: Option<&SweepMark>,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        match mark {
            None => self.sweep_keys(sink, None, limit).await,
            Some(SweepMark { key: Some(key), .. }) => self.sweep_keys(sink, Some(key), limit).await,
            Some(SweepMark { key: None, seq }) => self.sweep_keyless(sink, *seq, limit).await,
        }
    }

    async fn sweep_keys(
        &self,
        sink: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        type Found = (Vec<u8>, bool, Option<i64>, Option<Vec<u8>>, Option<bool>);
        let walk = async {
            let mut taken = self.reader.take().await?;
            let after = after.and_then(stored_key);
            let blob = after.as_ref().is_some_and(|(_, blob)| *blob);
            let query = sqlx::query_as(include_str!("sql/heads_of_keys.sql"))
                .bind(sink)
                .bind(after.map(|(bytes, _)| bytes))
                .bind(blob)
                .bind(i64::from(limit))
                .bind(decode::sortable(Timestamp::now()));
            let found: Vec<Found> = query.fetch_all(taken.sql()).await?;
            taken.give_back();
            Ok(found)
        };
        let found = self.reader.limited("sweep keys", walk).await?;
        let more = found.len() >= limit as usize;
        let last = found.last().filter(|_| more);
        let next = SweepMark {
            key: last.map(|(bytes, blob, ..)| mark_of(bytes, *blob).into()),
            seq: 0,
        };
        let heads = found.into_iter().filter_map(|(key, blob, seq, kind, due)| {
            Some(Head {
                seq: seq?,
                ordering_key: decode::key(Some(key), blob),
                kind: decode::text(kind?),
                due: due.unwrap_or_default(),
            })
        });
        Ok(Sweep {
            heads: heads.collect(),
            next: Some(next),
        })
    }

    async fn sweep_keyless(
        &self,
        sink: &str,
        after: i64,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        let walk = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/heads_without_key.sql"))
                .bind(sink)
                .bind(after)
                .bind(i64::from(limit))
                .bind(decode::sortable(Timestamp::now()));
            let found: Vec<(i64, Vec<u8>, bool, bool)> = query.fetch_all(taken.sql()).await?;
            taken.give_back();
            Ok(found)
        };
        let found = self
            .reader
            .limited("sweep rows without a key", walk)
            .await?;
        let more = found.len() >= limit as usize;
        let next = found.last().filter(|_| more).map(|(seq, ..)| SweepMark {
            key: None,
            seq: *seq,
        });
        let pending = found.into_iter().filter(|(_, _, done, _)| !done);
        let heads = pending.map(|(seq, kind, _, due)| Head {
            seq,
            ordering_key: None,
            kind: decode::text(kind),
            due,
        });
        Ok(Sweep {
            heads: heads.collect(),
            next,
        })
    }

    pub(super) async fn read_begun(&self, after: i64, limit: u32) -> Result<Begun, SourceError> {
        type Found = (
            i64,
            Option<Vec<u8>>,
            Option<Vec<u8>>,
            Option<Vec<u8>>,
            bool,
            String,
            Option<i64>,
            Option<String>,
            bool,
        );
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/begun.sql"))
                .bind(after)
                .bind(i64::from(limit));
            let found: Vec<Found> = query.fetch_all(taken.sql()).await?;
            taken.give_back();
            Ok(found)
        };
        let found = self
            .reader
            .limited("read what is left of old routes", read)
            .await?;
        let rows = found.into_iter().map(
            |(seq, id, kind, key, blob, sink, attempts, last_error, open)| {
                let event = BegunEvent {
                    seq,
                    id: decode::id(&id.unwrap_or_default()),
                    kind: decode::text(kind.unwrap_or_default()),
                    ordering_key: decode::key(key, blob),
                    open: Vec::new(),
                };
                let share = Share {
                    sink: sink.into(),
                    attempts: decode::count(attempts),
                    last_error,
                };
                (seq, open.then_some((event, share)))
            },
        );
        Ok(Begun::gather(rows, limit))
    }

    pub(super) async fn due_from(
        &self,
        sink: &str,
        due: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>, SourceError> {
        type Found = (i64, Option<Vec<u8>>, bool, Vec<u8>);
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/due_delayed.sql"))
                .bind(sink)
                .bind(decode::sortable(due))
                .bind(i64::from(limit));
            let mut found: Vec<Found> = query.fetch_all(taken.sql()).await?;
            let query = sqlx::query_as(include_str!("sql/due_backing_off.sql"))
                .bind(sink)
                .bind(due.to_string())
                .bind(i64::from(limit));
            found.extend(query.fetch_all::<_>(taken.sql()).await? as Vec<Found>);
            taken.give_back();
            Ok(found)
        };
        let found = self.reader.limited("read due times", read).await?;
        let now = Timestamp::now();
        let mut rows: Vec<Due> = found
            .into_iter()
            .filter_map(|(seq, key, blob, at)| {
                let due = decode::moment(&at)?;
                Some(Due {
                    seq,
                    ordering_key: decode::key(key, blob),
                    due_in: decode::until(due, now),
                    due,
                })
            })
            .collect();
        rows.sort_by_key(|row| (row.due, row.seq));
        rows.truncate(limit as usize);
        Ok(rows)
    }

    pub(super) async fn sample_backlog(&self) -> Result<Backlog, SourceError> {
        /// Rows that are counted.
        const COUNTED: i64 = 100_000;
        /// Rows that are looked at for the oldest.
        const LOOKED_AT: i64 = 1_000;
        let now = Timestamp::now();
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_scalar(include_str!("sql/backlog_count.sql"));
            let count: i64 = query.bind(COUNTED + 1).fetch_one(taken.sql()).await?;
            let query = sqlx::query_scalar(include_str!("sql/backlog_oldest.sql"));
            let query = query.bind(now.to_string().trim_end_matches('Z').to_owned());
            let oldest: Option<Vec<u8>> = query.bind(LOOKED_AT).fetch_one(taken.sql()).await?;
            taken.give_back();
            Ok((count, oldest))
        };
        let (count, oldest) = self.reader.limited("sample the backlog", read).await?;
        let oldest = oldest.and_then(|at| decode::moment(&at));
        Ok(Backlog {
            events: count.min(COUNTED) as u64,
            bounded: count > COUNTED,
            oldest_ready_age_s: oldest.map(|at| decode::seconds_since(at, now).max(0.0)),
        })
    }
}

/// A key in a sweep mark: hexadecimal, because it has to come back exactly as it is stored, text or not.
fn mark_of(bytes: &[u8], blob: bool) -> String {
    let mut mark = String::with_capacity(1 + 2 * bytes.len());
    mark.push(if blob { 'b' } else { 't' });
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            mark.extend(char::from_digit(u32::from(nibble), 16));
        }
    }
    mark
}

fn stored_key(mark: &str) -> Option<StoredKey> {
    let blob = mark.starts_with('b');
    let digits: Option<Vec<u32>> = mark
        .chars()
        .skip(1)
        .map(|digit| digit.to_digit(16))
        .collect();
    let bytes = digits?
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |all, digit| all << 4 | *digit as u8))
        .collect();
    Some((bytes, blob))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_bring_keys_back_as_they_are_stored() {
        for key in [&b""[..], b"a", b"\x00\xff\x80", "ü".as_bytes()] {
            for blob in [true, false] {
                let mark = mark_of(key, blob);
                assert_eq!(stored_key(&mark), Some((key.to_vec(), blob)));
            }
        }
    }
}
