//! What finds events that reading forward cannot: writers in flight, key heads, due times, done marks.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::query;

use super::Postgres;
use super::value::Moment;
use crate::event::Timestamp;
use crate::source::{Begun, BegunEvent, Due, Head, Share, SourceError, Sweep, SweepMark, Writers};

const WRITERS: &str = "asking for writers in flight";
const SWEEPING: &str = "sweeping";
const DUE: &str = "looking for due rows";
const BEGUN: &str = "reading what is left of old routes";
const DONE: &str = "removing finished events";

impl Postgres {
    pub(super) async fn open_writers(&self) -> Result<Writers, SourceError> {
        let mut writers = Writers::default();
        for row in self
            .relay
            .rows(WRITERS, query(self.sql.writers.text()))
            .await?
        {
            let name: String = self.column(WRITERS, &row, 0)?;
            let list = if self.column(WRITERS, &row, 1)? {
                &mut writers.prepared
            } else {
                &mut writers.running
            };
            // A transaction may show the lock twice (with a savepoint), which is still one transaction.
            if !list.contains(&name) {
                list.push(name);
            }
        }
        Ok(writers)
    }

    /// Keys first, in the order of the index, then the rows without one.
    pub(super) async fn sweep(
        &self,
        sink: &str,
        mark: Option<&SweepMark>,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        match mark {
            None => self.sweep_keys(sink, "", limit).await,
            Some(SweepMark { key: Some(key), .. }) => self.sweep_keys(sink, key, limit).await,
            Some(SweepMark { key: None, seq }) => self.sweep_keyless(sink, *seq, limit).await,
        }
    }

    async fn sweep_keys(&self, sink: &str, after: &str, limit: u32) -> Result<Sweep, SourceError> {
        let call = query(self.sql.heads_keys.text())
            .bind(sink)
            .bind(after)
            .bind(i64::from(limit));
        let rows = self.relay.rows(SWEEPING, call).await?;
        let mut sweep = Sweep {
            heads: Vec::with_capacity(rows.len()),
            // Too few keys for a slice: there are no more.
            next: Some(SweepMark {
                key: None,
                seq: i64::MIN,
            }),
        };
        for row in &rows {
            let key: String = self.column(SWEEPING, row, 0)?;
            let key: Arc<str> = key.into();
            let seq: Option<i64> = self.column(SWEEPING, row, 1)?;
            if let Some(seq) = seq {
                sweep.heads.push(Head {
                    seq,
                    ordering_key: Some(Arc::clone(&key)),
                    kind: self.column(SWEEPING, row, 2)?,
                    due: self.column(SWEEPING, row, 3)?,
                });
            }
            if rows.len() >= limit as usize {
                sweep.next = Some(SweepMark {
                    key: Some(key),
                    seq: 0,
                });
            }
        }
        Ok(sweep)
    }

    async fn sweep_keyless(
        &self,
        sink: &str,
        after: i64,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        let call = query(self.sql.heads_keyless.text())
            .bind(sink)
            .bind(after)
            .bind(i64::from(limit));
        let rows = self.relay.rows(SWEEPING, call).await?;
        let mut sweep = Sweep::default();
        for row in &rows {
            let seq: i64 = self.column(SWEEPING, row, 0)?;
            let done: bool = self.column(SWEEPING, row, 2)?;
            if !done {
                sweep.heads.push(Head {
                    seq,
                    ordering_key: None,
                    kind: self.column(SWEEPING, row, 1)?,
                    due: self.column(SWEEPING, row, 3)?,
                });
            }
            if rows.len() >= limit as usize {
                sweep.next = Some(SweepMark { key: None, seq });
            }
        }
        Ok(sweep)
    }

    pub(super) async fn due_rows(
        &self,
        sink: &str,
        due: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>, SourceError> {
        let call = query(self.sql.due_after.text())
            .bind(sink)
            .bind(Moment::from(due))
            .bind(i64::from(limit));
        let mut found = Vec::new();
        for row in self.relay.rows(DUE, call).await? {
            let key: Option<String> = self.column(DUE, &row, 1)?;
            let due: Moment = self.column(DUE, &row, 2)?;
            let now: Moment = self.column(DUE, &row, 3)?;
            found.push(Due {
                seq: self.column(DUE, &row, 0)?,
                ordering_key: key.map(Arc::from),
                due_in: due.after(now),
                due: due.timestamp(),
            });
        }
        Ok(found)
    }

    pub(super) async fn read_begun(&self, after: i64, limit: u32) -> Result<Begun, SourceError> {
        let call = query(self.sql.begun.text())
            .bind(after)
            .bind(i64::from(limit));
        let mut found = Vec::new();
        for row in self.relay.rows(BEGUN, call).await? {
            let seq = self.column(BEGUN, &row, 0)?;
            let open: bool = self.column(BEGUN, &row, 7)?;
            let left = if open {
                let key: Option<String> = self.column(BEGUN, &row, 3)?;
                let sink: String = self.column(BEGUN, &row, 4)?;
                let attempts: i64 = self.column(BEGUN, &row, 5)?;
                let event = BegunEvent {
                    seq,
                    id: self.column(BEGUN, &row, 1)?,
                    kind: self.column(BEGUN, &row, 2)?,
                    ordering_key: key.map(Arc::from),
                    open: Vec::new(),
                };
                let share = Share {
                    sink: Arc::from(sink),
                    attempts: u32::try_from(attempts.max(0)).unwrap_or(u32::MAX),
                    last_error: self.column(BEGUN, &row, 6)?,
                };
                Some((event, share))
            } else {
                None
            };
            found.push((seq, left));
        }
        Ok(Begun::gather(found.into_iter(), limit))
    }

    pub(super) async fn remove_done(
        &self,
        required: &[Arc<str>],
        limit: u32,
    ) -> Result<u64, SourceError> {
        // Nothing required would mean that everything is done.
        if required.is_empty() {
            return Ok(0);
        }
        let unique: HashSet<&str> = required.iter().map(|sink| &**sink).collect();
        let call = query(self.sql.delete_done.text())
            .bind(unique.into_iter().collect::<Vec<&str>>())
            .bind(i64::from(limit))
            .bind(self.options.keep.as_str());
        let removed: i64 = self.only(DONE, &self.relay.rows(DONE, call).await?, 0)?;
        Ok(removed.unsigned_abs())
    }
}
