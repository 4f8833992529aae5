//! What operators do to keys and flows: pause, resume, look, retry now, skip.

use serde_json::json;
use sqlx::postgres::PgRow;
use sqlx::{Row as _, query};

use super::Postgres;
use super::admin::filtered;
use super::pool::Pool;
use super::value::{Moment, clean};
use crate::source::admin::{DiscardedFilter, Operator, Overtakes};
use crate::source::pause::{MAX_PAUSES, too_many};
use crate::source::waiting::{KeyEvent, KeyName, MAX_BEHIND, Pick, Waiting};
use crate::source::{Pause, SourceError, Target};

const PAUSES: &str = "reading pauses";
const PAUSING: &str = "pausing";
const RESUMING: &str = "resuming";
const WAITING: &str = "looking for keys that wait";
const LOOKING: &str = "looking at a key";
const HURRYING: &str = "making events due";
const SKIPPING: &str = "skipping";
const AHEAD: &str = "looking ahead of a requeue";

/// Delayed rows looked at for heads of keys.
const DELAYED_SAMPLE: i64 = 10_000;

impl Postgres {
    pub(super) async fn list_pauses(&self, pool: &Pool) -> Result<Vec<Pause>, SourceError> {
        let call = query(self.sql.pause_list.text()).bind(i64::from(MAX_PAUSES));
        let mut pauses = Vec::new();
        for row in pool.rows(PAUSES, call).await? {
            let scope: String = self.column(PAUSES, &row, 0)?;
            let (name, sink) = (self.column(PAUSES, &row, 1)?, self.column(PAUSES, &row, 2)?);
            let Some(target) = Target::from_parts(&scope, name, sink) else {
                continue;
            };
            let since: Moment = self.column(PAUSES, &row, 5)?;
            pauses.push(Pause {
                target,
                by: self.column(PAUSES, &row, 3)?,
                reason: self.column(PAUSES, &row, 4)?,
                since: since.timestamp().to_string(),
            });
        }
        Ok(pauses)
    }

    pub(super) async fn hold(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        let (scope, name, sink) = target.parts();
        let mut session = self.admin.transaction(PAUSING, true).await?;
        let call = query(self.sql.pause_set.text())
            .bind(scope)
            .bind(name.to_owned())
            .bind(sink.to_owned())
            .bind(clean(&by.name, 255).into_owned())
            .bind(
                by.reason
                    .as_deref()
                    .map(|why| clean(why, 2_048).into_owned()),
            )
            .bind(i64::from(MAX_PAUSES));
        if session.execute(PAUSING, call).await? == 0 {
            let call = query(self.sql.pause_held.text())
                .bind(scope)
                .bind(name.to_owned())
                .bind(sink.to_owned());
            let held = self.only(PAUSING, &session.rows(PAUSING, call).await?, 0)?;
            session.finish(PAUSING).await?;
            return if held { Ok(false) } else { Err(too_many()) };
        }
        self.told(session, "pause", target, by).await
    }

    pub(super) async fn let_go(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        let (scope, name, sink) = target.parts();
        let mut session = self.admin.transaction(RESUMING, true).await?;
        let call = query(self.sql.pause_clear.text())
            .bind(scope)
            .bind(name.to_owned())
            .bind(sink.to_owned());
        if session.execute(RESUMING, call).await? == 0 {
            session.finish(RESUMING).await?;
            return Ok(false);
        }
        self.told(session, "resume", target, by).await
    }

    /// Tells the owners that the pauses changed, writes the audit row, and commits.
    async fn told(
        &self,
        mut session: super::pool::Session<'_>,
        action: &str,
        target: &Target,
        by: &Operator,
    ) -> Result<bool, SourceError> {
        let call = query(self.sql.control_pauses.text()).bind(clean(&by.name, 255).into_owned());
        session.execute(PAUSING, call).await?;
        self.audit(&mut session, action, by, json!(target)).await?;
        session.finish(PAUSING).await?;
        Ok(true)
    }

    pub(super) async fn list_waiting(
        &self,
        sink: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Waiting>, SourceError> {
        let call = query(self.sql.waiting.text())
            .bind(sink.map(str::to_owned))
            .bind(i64::from(limit))
            .bind(i64::from(MAX_BEHIND))
            .bind(DELAYED_SAMPLE);
        let rows = self.admin.rows(WAITING, call).await?;
        let waiting = |row: &PgRow| -> Result<Waiting, sqlx::Error> {
            let behind: i64 = row.try_get(13)?;
            Ok(Waiting {
                sink: row.try_get(12)?,
                event: key_event(row)?,
                behind: behind.unsigned_abs(),
            })
        };
        rows.iter()
            .map(|row| waiting(row).map_err(|cause| self.refused(WAITING, cause)))
            .collect()
    }

    pub(super) async fn read_key(
        &self,
        sink: &str,
        key: &KeyName,
        limit: u32,
    ) -> Result<Vec<KeyEvent>, SourceError> {
        let call = match key {
            KeyName::Named(key) => query(self.sql.key_events.text())
                .bind(sink.to_owned())
                .bind(key.clone())
                .bind(i64::from(limit)),
            KeyName::Alone(seq) => query(self.sql.key_event_alone.text())
                .bind(sink.to_owned())
                .bind(*seq),
        };
        let rows = self.admin.rows(LOOKING, call).await?;
        rows.iter()
            .map(|row| key_event(row).map_err(|cause| self.refused(LOOKING, cause)))
            .collect()
    }

    pub(super) async fn retry_now(
        &self,
        picks: &[Pick],
        by: &Operator,
    ) -> Result<u64, SourceError> {
        let (seqs, sinks) = columns(picks);
        let mut session = self.admin.transaction(HURRYING, true).await?;
        let call = query(self.sql.pick_lock.text()).bind(seqs.clone());
        session.rows(HURRYING, call).await?;
        let call = query(self.sql.pick_hurry.text()).bind(seqs).bind(sinks);
        let count = session.rows(HURRYING, call).await?.len() as u64;
        self.tell(&mut session, "hurry", &Pick::seqs(picks), by)
            .await?;
        self.audit(&mut session, "retry", by, Pick::detail(picks, count))
            .await?;
        session.finish(HURRYING).await?;
        Ok(count)
    }

    pub(super) async fn mark_skipped(
        &self,
        picks: &[Pick],
        by: &Operator,
    ) -> Result<u64, SourceError> {
        let (seqs, sinks) = columns(picks);
        let mut session = self.admin.transaction(SKIPPING, true).await?;
        let call = query(self.sql.pick_lock.text()).bind(seqs.clone());
        session.rows(SKIPPING, call).await?;
        let call = query(self.sql.pick_skip.text())
            .bind(seqs)
            .bind(sinks)
            .bind(clean(&by.skips(), 2_048).into_owned());
        let count = session.rows(SKIPPING, call).await?.len() as u64;
        self.tell(&mut session, "hurry", &Pick::seqs(picks), by)
            .await?;
        self.audit(&mut session, "skip", by, Pick::detail(picks, count))
            .await?;
        session.finish(SKIPPING).await?;
        Ok(count)
    }

    pub(super) async fn look_ahead(
        &self,
        filter: &DiscardedFilter,
    ) -> Result<Overtakes, SourceError> {
        let call = filtered(query(self.sql.overtakes.text()), filter)
            .bind(i64::from(Overtakes::LOOKED_AT))
            .bind(i64::from(MAX_BEHIND))
            .bind(i64::from(Overtakes::HISTORY));
        let rows = self.admin.rows(AHEAD, call).await?;
        let number = |place| -> Result<u64, SourceError> {
            let number: i64 = self.only(AHEAD, &rows, place)?;
            Ok(number.unsigned_abs())
        };
        Ok(Overtakes {
            events: number(0)?,
            pending_keys: number(1)?,
            pending_events: number(2)?,
            late: number(3)?,
            late_bounded: self.only(AHEAD, &rows, 4)?,
        })
    }
}

fn columns(picks: &[Pick]) -> (Vec<i64>, Vec<String>) {
    picks
        .iter()
        .map(|pick| (pick.seq, pick.sink.clone()))
        .unzip()
}

/// The columns of `key_events.sql`, `key_event_alone.sql` and `waiting.sql`.
fn key_event(row: &PgRow) -> Result<KeyEvent, sqlx::Error> {
    let moment = |place| -> Result<_, sqlx::Error> {
        let at: Moment = row.try_get(place)?;
        Ok(at.timestamp())
    };
    let perhaps = |place| -> Result<_, sqlx::Error> {
        let at: Option<Moment> = row.try_get(place)?;
        Ok(at.map(Moment::timestamp))
    };
    let last_error: Option<String> = row.try_get(8)?;
    Ok(KeyEvent {
        seq: row.try_get(0)?,
        id: row.try_get(1)?,
        kind: row.try_get(2)?,
        ordering_key: row.try_get(3)?,
        occurred_at: moment(4)?,
        available_at: moment(5)?,
        attempts: row.try_get(6)?,
        next_at: perhaps(7)?,
        failed_at: perhaps(9)?.filter(|_| last_error.is_some()),
        last_error,
        skip: row.try_get(10)?,
        now: moment(11)?,
    })
}
