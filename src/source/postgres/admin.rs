//! The operator's side.

use serde_json::{Value, json};
use sqlx::postgres::PgRow;
use sqlx::{Row as _, query};
use uuid::Uuid;

use super::Postgres;
use super::pool::{Call, Session};
use super::value::{Moment, clean, micros};
use crate::source::admin::{
    Discarded, DiscardedFilter, InstanceView, NewEvent, Operator, SinkCount, Status,
};
use crate::source::{INLINE_LIMIT, SourceError, SourceErrorKind};

const PUBLISHING: &str = "publishing";
const STATUS: &str = "reading the status";
const LISTING: &str = "listing discarded events";
const REQUEUING: &str = "requeuing";
/// How often a requeue begins anew because events ended for their other sinks meanwhile.
const REQUEUE_TRIES: u32 = 10;
const DROPPING: &str = "dropping discarded events";
const KINDS: &str = "reading kinds";

/// Events looked at for kinds.
const KINDS_SAMPLE: i64 = 10_000;

/// Seqs in one command row.
const SEQS_PER_COMMAND: usize = 10_000;

impl Postgres {
    pub(super) async fn insert_events(
        &self,
        events: &[NewEvent],
    ) -> Result<Vec<Uuid>, SourceError> {
        let ids: Vec<Uuid> = events
            .iter()
            .map(|event| event.id.unwrap_or_else(Uuid::now_v7))
            .collect();
        let column = |pick: fn(&NewEvent) -> Option<String>| -> Vec<Option<String>> {
            events.iter().map(pick).collect()
        };
        let call = query(self.sql.publish.text())
            .bind(ids.clone())
            .bind(column(|e| Some(e.kind.clone())))
            .bind(column(|e| e.ordering_key.clone()))
            .bind(column(|e| {
                e.payload.as_ref().map(|json| json.get().to_owned())
            }))
            .bind(
                events
                    .iter()
                    .map(|e| e.payload_bytes.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(column(|e| e.content_type.clone()))
            .bind(column(|e| {
                Some(serde_json::Value::from_iter(e.headers.clone()).to_string())
            }))
            .bind(
                events
                    .iter()
                    .map(|e| e.delay.map_or(0, micros))
                    .collect::<Vec<_>>(),
            );
        let mut session = self.admin.transaction(PUBLISHING, true).await?;
        session.execute(PUBLISHING, call).await?;
        session.finish(PUBLISHING).await?;
        Ok(ids)
    }

    pub(super) async fn read_status(&self) -> Result<Status, SourceError> {
        let mut instances = Vec::new();
        for row in self
            .admin
            .rows(STATUS, query(self.sql.instances.text()))
            .await?
        {
            instances.push(InstanceView {
                instance: self.column(STATUS, &row, 0)?,
                host: self.column(STATUS, &row, 1)?,
                version: self.column(STATUS, &row, 2)?,
                listening: self.column(STATUS, &row, 3)?,
                seen_s: self.column(STATUS, &row, 4)?,
                report: self.column(STATUS, &row, 5)?,
            });
        }
        let mut discarded = Vec::new();
        for row in self
            .admin
            .rows(STATUS, query(self.sql.discarded_counts.text()))
            .await?
        {
            let count: i64 = self.column(STATUS, &row, 1)?;
            discarded.push(SinkCount {
                sink: self.column(STATUS, &row, 0)?,
                count: count.unsigned_abs(),
            });
        }
        Ok(Status {
            backlog: self.sample_backlog().await?,
            leases: self.list_leases().await?,
            instances,
            discarded,
            pauses: self.list_pauses(&self.admin).await?,
        })
    }

    pub(super) async fn list_discarded(
        &self,
        filter: &DiscardedFilter,
        limit: u32,
    ) -> Result<Vec<Discarded>, SourceError> {
        let call = filtered(query(self.sql.discarded_list.text()), filter)
            .bind(i64::from(limit))
            .bind(INLINE_LIMIT as i32);
        let rows = self.admin.rows(LISTING, call).await?;
        rows.iter()
            .map(|row| discarded(row).map_err(|cause| self.refused(LISTING, cause)))
            .collect()
    }

    pub(super) async fn requeue_discarded(
        &self,
        filter: &DiscardedFilter,
        by: &Operator,
    ) -> Result<u64, SourceError> {
        let mut tries = 0;
        let (mut session, mut seqs, taken) = loop {
            tries += 1;
            let mut session = self.admin.transaction(REQUEUING, true).await?;
            let call = filtered(query(self.sql.discarded_requeue.text()), filter);
            let mut seqs: Vec<i64> = Vec::new();
            let mut ids: Vec<Uuid> = Vec::new();
            for row in session.rows(REQUEUING, call).await? {
                seqs.push(self.column(REQUEUING, &row, 0)?);
                ids.push(self.column(REQUEUING, &row, 1)?);
            }
            let taken = seqs.len() as u64;
            let call = query(self.sql.requeue_strangers.text())
                .bind(seqs.clone())
                .bind(ids);
            let rows = session.rows(REQUEUING, call).await?;
            let strangers: i64 = self.only(REQUEUING, &rows, 0)?;
            let ended: i64 = self.only(REQUEUING, &rows, 1)?;
            // Dropping the session rolls everything back.
            if strangers > 0 {
                return Err(SourceError::new(
                    SourceErrorKind::Refused,
                    format!(
                        "database {}: {REQUEUING}: the seq of {strangers} of them belongs to another event by \
                         now (was the sequence reset?); nothing was changed",
                        self.options.name
                    ),
                ));
            }
            if ended == 0 {
                break (session, seqs, taken);
            }
            // They were still there for other sinks and ended in between: now they can come back whole.
            if tries == REQUEUE_TRIES {
                return Err(SourceError::new(
                    SourceErrorKind::Refused,
                    format!(
                        "database {}: {REQUEUING}: {ended} of them were finished by other sinks meanwhile; nothing \
                         was changed, try again",
                        self.options.name
                    ),
                ));
            }
        };
        seqs.dedup();
        self.tell(&mut session, "look", &seqs, by).await?;
        self.audit(&mut session, "requeue", by, selection(filter, taken, &seqs))
            .await?;
        session.finish(REQUEUING).await?;
        Ok(taken)
    }

    pub(super) async fn delete_discarded(
        &self,
        filter: &DiscardedFilter,
        by: &Operator,
    ) -> Result<u64, SourceError> {
        let mut session = self.admin.transaction(DROPPING, true).await?;
        let call = filtered(query(self.sql.discarded_drop.text()), filter);
        let rows = session.rows(DROPPING, call).await?;
        let mut seqs: Vec<i64> = Vec::with_capacity(rows.len());
        for row in &rows {
            seqs.push(self.column(DROPPING, row, 0)?);
        }
        let dropped = seqs.len() as u64;
        seqs.sort_unstable();
        seqs.dedup();
        self.audit(&mut session, "drop", by, selection(filter, dropped, &seqs))
            .await?;
        session.finish(DROPPING).await?;
        Ok(dropped)
    }

    pub(super) async fn sample_kinds(&self, limit: u32) -> Result<Vec<String>, SourceError> {
        let call = query(self.sql.pending_kinds.text())
            .bind(i64::from(limit))
            .bind(KINDS_SAMPLE);
        let rows = self.relay.rows(KINDS, call).await?;
        rows.iter().map(|row| self.column(KINDS, row, 0)).collect()
    }

    /// Tells the owners which rows to look at, and why.
    pub(super) async fn tell(
        &self,
        session: &mut Session<'_>,
        word: &'static str,
        seqs: &[i64],
        by: &Operator,
    ) -> Result<(), SourceError> {
        for slice in seqs.chunks(SEQS_PER_COMMAND) {
            let call = query(self.sql.control_look.text())
                .bind(slice.to_vec())
                .bind(clean(&by.name, 255))
                .bind(word);
            session.execute("telling the owners", call).await?;
        }
        Ok(())
    }

    pub(super) async fn audit(
        &self,
        session: &mut Session<'_>,
        action: &str,
        by: &Operator,
        detail: Value,
    ) -> Result<(), SourceError> {
        let call = query(self.sql.audit.text())
            .bind(clean(&by.name, 255))
            .bind(action.to_owned())
            .bind(by.reason.as_deref().map(|reason| clean(reason, 2_048)))
            .bind(detail.to_string());
        session.execute("writing the audit", call).await?;
        Ok(())
    }
}

/// What the audit keeps of a filter, and of what it selected.
fn selection(filter: &DiscardedFilter, count: u64, seqs: &[i64]) -> Value {
    json!({
        "count": count,
        "seqs": seqs,
        "ids": filter.ids,
        "sink": filter.sink,
        "kind": filter.kind,
        "ordering_key": filter.ordering_key,
        "reason": filter.reason,
        "code": filter.code,
        "older_than_s": filter.older_than.map(|age| age.as_secs()),
    })
}

/// Binds a filter: `$1` to `$8` of every statement on discarded events.
pub(super) fn filtered(call: Call, filter: &DiscardedFilter) -> Call {
    let prefix = filter
        .kind
        .as_deref()
        .and_then(|kind| kind.strip_suffix('*'));
    let exact = if prefix.is_none() {
        filter.kind.clone()
    } else {
        None
    };
    let ids = (!filter.ids.is_empty()).then(|| filter.ids.clone());
    call.bind(ids)
        .bind(filter.sink.clone())
        .bind(exact)
        .bind(prefix.map(str::to_owned))
        .bind(filter.ordering_key.clone())
        .bind(filter.reason.clone())
        .bind(filter.code.clone())
        .bind(filter.older_than.map(micros))
}

fn discarded(row: &PgRow) -> Result<Discarded, sqlx::Error> {
    let discarded_at: Moment = row.try_get(9)?;
    let size: Option<i32> = row.try_get(10)?;
    Ok(Discarded {
        seq: row.try_get(0)?,
        id: row.try_get(1)?,
        sink: row.try_get(2)?,
        kind: row.try_get(3)?,
        ordering_key: row.try_get(4)?,
        reason: row.try_get(5)?,
        code: row.try_get(6)?,
        last_error: row.try_get(7)?,
        attempts: row.try_get(8)?,
        discarded_at: discarded_at.timestamp().to_string(),
        size: size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
        payload: row.try_get(11)?,
        headers: row.try_get(12)?,
    })
}
