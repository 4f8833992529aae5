//! What operators do to keys and flows: pause, resume, look, retry now, skip.

use serde_json::{Value, json as value};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::admin::Conditions;
use super::connection::Taken;
use super::decode::{self, later};
use super::error::Failure;
use super::{Sqlite, json};
use crate::event::Timestamp;
use crate::source::admin::{DiscardedFilter, Operator, Overtakes};
use crate::source::pause::{MAX_PAUSES, too_many};
use crate::source::settlement::clean;
use crate::source::waiting::{BLOCKED, KeyEvent, KeyName, MAX_BEHIND, Pick, Waiting};
use crate::source::{Pause, SourceError, Target};

/// Delayed rows looked at for heads of keys.
const DELAYED_SAMPLE: i64 = 10_000;
/// Everything that is paused.
pub(super) async fn pauses(taken: &mut Taken<'_>) -> Result<Vec<Pause>, Failure> {
    type Found = (String, String, String, String, Option<String>, String);
    let query = sqlx::query_as(include_str!("sql/pauses.sql")).bind(i64::from(MAX_PAUSES));
    let rows: Vec<Found> = query.fetch_all(taken.sql()).await?;
    let known = rows
        .into_iter()
        .filter_map(|(scope, name, sink, by, reason, since)| {
            Some(Pause {
                target: Target::from_parts(&scope, name, sink)?,
                by,
                since,
                reason,
            })
        });
    Ok(known.collect())
}

/// Tells the owner which rows to look at, and why.
pub(super) async fn tell(
    taken: &mut Taken<'_>,
    verb: &'static str,
    seqs: &[i64],
    by: &Operator,
) -> Result<(), Failure> {
    let query = sqlx::query(include_str!("sql/insert_look.sql"))
        .bind(json(seqs))
        .bind(&by.name)
        .bind(Timestamp::now().to_string())
        .bind(verb);
    query.execute(taken.sql()).await?;
    Ok(())
}

/// Writes down who did what.
pub(super) async fn audit(
    taken: &mut Taken<'_>,
    action: &str,
    by: &Operator,
    detail: &Value,
) -> Result<(), Failure> {
    let query = sqlx::query(include_str!("sql/insert_audit.sql"))
        .bind(Timestamp::now().to_string())
        .bind(&by.name)
        .bind(action)
        .bind(&by.reason)
        .bind(detail.to_string());
    query.execute(taken.sql()).await?;
    Ok(())
}

impl Sqlite {
    pub(super) async fn list_pauses(&self) -> Result<Vec<Pause>, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let found = pauses(&mut taken).await?;
            taken.give_back();
            Ok(found)
        };
        self.reader.limited("read pauses", read).await
    }

    pub(super) async fn hold(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        let (scope, name, sink) = target.parts();
        let hold = async {
            let mut taken = self.writer.take().await?;
            taken.begin(true).await?;
            let query = sqlx::query(include_str!("sql/insert_pause.sql"))
                .bind(scope)
                .bind(name)
                .bind(sink)
                .bind(&by.name)
                .bind(by.reason.as_deref().map(clean))
                .bind(Timestamp::now().to_string())
                .bind(i64::from(MAX_PAUSES));
            let new = query.execute(taken.sql()).await?.rows_affected() > 0;
            let query = sqlx::query_scalar(include_str!("sql/has_pause.sql"));
            let query = query.bind(scope).bind(name).bind(sink);
            let held: bool = query.fetch_one(taken.sql()).await?;
            if new {
                told(&mut taken, "pause", target, by).await?;
            }
            taken.commit().await?;
            taken.give_back();
            Ok((new, held))
        };
        let (new, held) = self.writer.limited("pause", hold).await?;
        self.notify();
        if held { Ok(new) } else { Err(too_many()) }
    }

    pub(super) async fn let_go(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        let (scope, name, sink) = target.parts();
        let let_go = async {
            let mut taken = self.writer.take().await?;
            taken.begin(true).await?;
            let query = sqlx::query(include_str!("sql/delete_pause.sql"));
            let query = query.bind(scope).bind(name).bind(sink);
            let was = query.execute(taken.sql()).await?.rows_affected() > 0;
            if was {
                told(&mut taken, "resume", target, by).await?;
            }
            taken.commit().await?;
            taken.give_back();
            Ok(was)
        };
        let was = self.writer.limited("resume", let_go).await?;
        self.notify();
        Ok(was)
    }

    pub(super) async fn list_waiting(
        &self,
        sink: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Waiting>, SourceError> {
        let now = Timestamp::now();
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query(include_str!("sql/waiting_failed.sql"))
                .bind(sink)
                .bind(i64::from(limit))
                .bind(i64::from(MAX_BEHIND));
            let mut rows = query.fetch_all(taken.sql()).await?;
            let query = sqlx::query(include_str!("sql/waiting_delayed.sql"))
                .bind(decode::sortable(now))
                .bind(i64::from(limit))
                .bind(i64::from(MAX_BEHIND))
                .bind(DELAYED_SAMPLE);
            rows.extend(query.fetch_all(taken.sql()).await?);
            let waiting = rows.iter().map(|row| {
                Ok(Waiting {
                    sink: row.try_get(11)?,
                    event: key_event(row, now)?,
                    behind: row.try_get::<i64, _>(12)?.unsigned_abs(),
                })
            });
            let waiting: Result<Vec<_>, sqlx::Error> = waiting.collect();
            taken.give_back();
            Ok(waiting?)
        };
        self.reader.limited("look for keys that wait", read).await
    }

    pub(super) async fn read_key(
        &self,
        sink: &str,
        key: &KeyName,
        limit: u32,
    ) -> Result<Vec<KeyEvent>, SourceError> {
        let now = Timestamp::now();
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = match key {
                KeyName::Named(key) => sqlx::query(include_str!("sql/key_events.sql"))
                    .bind(sink)
                    .bind(key)
                    .bind(i64::from(limit)),
                KeyName::Alone(seq) => sqlx::query(include_str!("sql/key_event_alone.sql"))
                    .bind(sink)
                    .bind(seq),
            };
            let rows = query.fetch_all(taken.sql()).await?;
            let events: Result<Vec<_>, _> = rows.iter().map(|row| key_event(row, now)).collect();
            taken.give_back();
            Ok(events?)
        };
        self.reader.limited("look at a key", read).await
    }

    pub(super) async fn retry_now(
        &self,
        picks: &[Pick],
        by: &Operator,
    ) -> Result<u64, SourceError> {
        let hurry = async {
            let mut taken = self.writer.take().await?;
            taken.begin(true).await?;
            let now = Timestamp::now();
            let query = sqlx::query(include_str!("sql/hurry.sql"))
                .bind(pairs(picks))
                .bind(now.to_string())
                .bind(later(now, BLOCKED).to_string());
            let count = query.execute(taken.sql()).await?.rows_affected();
            tell(&mut taken, "hurry", &Pick::seqs(picks), by).await?;
            audit(&mut taken, "retry", by, &Pick::detail(picks, count)).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(count)
        };
        let count = self.writer.limited("make events due", hurry).await?;
        self.notify();
        Ok(count)
    }

    pub(super) async fn mark_skipped(
        &self,
        picks: &[Pick],
        by: &Operator,
    ) -> Result<u64, SourceError> {
        let skip = async {
            let mut taken = self.writer.take().await?;
            taken.begin(true).await?;
            let query = sqlx::query(include_str!("sql/skip.sql"))
                .bind(pairs(picks))
                .bind(clean(&by.skips()))
                .bind(Timestamp::now().to_string());
            let count = query.execute(taken.sql()).await?.rows_affected();
            tell(&mut taken, "hurry", &Pick::seqs(picks), by).await?;
            audit(&mut taken, "skip", by, &Pick::detail(picks, count)).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(count)
        };
        let count = self.writer.limited("skip", skip).await?;
        self.notify();
        Ok(count)
    }

    pub(super) async fn look_ahead(
        &self,
        filter: &DiscardedFilter,
    ) -> Result<Overtakes, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let conditions = Conditions::of(filter);
            let query = conditions
                .bind(sqlx::query(include_str!("sql/overtakes.sql")))
                .bind(i64::from(Overtakes::LOOKED_AT))
                .bind(i64::from(MAX_BEHIND))
                .bind(i64::from(Overtakes::HISTORY));
            let row = query.fetch_one(taken.sql()).await?;
            let number = |place: usize| -> Result<u64, sqlx::Error> {
                Ok(row.try_get::<i64, _>(place)?.unsigned_abs())
            };
            let overtakes = Overtakes {
                events: number(0)?,
                pending_keys: number(1)?,
                pending_events: number(2)?,
                late: number(3)?,
                // No history, or nothing picked: nothing went on.
                late_bounded: row.try_get::<Option<bool>, _>(4)?.unwrap_or_default(),
            };
            taken.give_back();
            Ok(overtakes)
        };
        self.reader.limited("look ahead of a requeue", read).await
    }
}

/// Tells the owner that the pauses changed, and writes the audit row.
async fn told(
    taken: &mut Taken<'_>,
    action: &str,
    target: &Target,
    by: &Operator,
) -> Result<(), Failure> {
    let query = sqlx::query(include_str!("sql/insert_pauses_changed.sql"))
        .bind(&by.name)
        .bind(Timestamp::now().to_string());
    query.execute(taken.sql()).await?;
    audit(taken, action, by, &value!(target)).await
}

fn pairs(picks: &[Pick]) -> String {
    let pairs: Vec<(i64, &str)> = picks.iter().map(|pick| (pick.seq, &*pick.sink)).collect();
    json(pairs)
}

/// The columns of `key_events.sql`, `key_event_alone.sql` and the statements of waiting events.
fn key_event(row: &SqliteRow, now: Timestamp) -> Result<KeyEvent, sqlx::Error> {
    let moment = |place: usize| -> Result<Option<Timestamp>, sqlx::Error> {
        let bytes: Option<Vec<u8>> = row.try_get(place)?;
        Ok(bytes.and_then(|bytes| decode::moment(&bytes)))
    };
    let text = |place: usize| -> Result<Option<Timestamp>, sqlx::Error> {
        let text: Option<String> = row.try_get(place)?;
        Ok(text.and_then(|text| decode::moment(text.as_bytes())))
    };
    let last_error: Option<String> = row.try_get(8)?;
    Ok(KeyEvent {
        seq: row.try_get(0)?,
        id: decode::id(row.try_get(1)?),
        kind: decode::text(row.try_get(2)?),
        ordering_key: row.try_get::<Option<Vec<u8>>, _>(3)?.map(decode::text),
        occurred_at: moment(4)?.unwrap_or(Timestamp(0)),
        available_at: moment(5)?.unwrap_or(Timestamp(0)),
        attempts: row.try_get(6)?,
        next_at: text(7)?,
        failed_at: text(9)?.filter(|_| last_error.is_some()),
        last_error,
        skip: row.try_get(10)?,
        now,
    })
}
