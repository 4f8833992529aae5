//! Writing outcomes.
//!
//! Two ways, both a handful of statements whatever the size of the batch. Published events of routes with one
//! sink, which is nearly everything, go in a single statement. Whatever else a batch holds takes a
//! transaction: lock leases and rows, look at what is done, decide ([`Settlement`]), write.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use sqlx::query;
use uuid::Uuid;

use super::Postgres;
use super::pool::Session;
use super::value::{clean, micros};
use crate::sink::Receipt;
use crate::source::settlement::{ERROR_LIMIT, Facts, Known, Mark, Marked, Settlement};
use crate::source::{Outcome, PublishedKeep, SourceError, SourceErrorKind, Verdict};

const SETTLING: &str = "settling";

/// Characters kept of a stream's name.
const STREAM_CHARS: usize = 512;

impl Postgres {
    pub(super) async fn settle_batch(
        &self,
        outcomes: &[Outcome],
        durable: bool,
    ) -> Result<Vec<bool>, SourceError> {
        if outcomes.is_empty() {
            return Ok(Vec::new());
        }
        if !durable
            && outcomes
                .iter()
                .any(|o| matches!(o.verdict, Verdict::Discarded { .. }))
        {
            return Err(SourceError::new(
                SourceErrorKind::Refused,
                format!(
                    "database {}: a discard must be settled durably",
                    self.options.name
                ),
            ));
        }
        if simple(outcomes) {
            self.settle_published(outcomes, durable).await
        } else {
            self.settle_mixed(outcomes, durable).await
        }
    }

    async fn settle_published(
        &self,
        outcomes: &[Outcome],
        durable: bool,
    ) -> Result<Vec<bool>, SourceError> {
        let statement = match self.options.keep {
            PublishedKeep::None => &self.sql.settle_published,
            PublishedKeep::Receipt => &self.sql.settle_published_receipt,
            PublishedKeep::Full => &self.sql.settle_published_full,
        };
        let all: Vec<&Outcome> = outcomes.iter().collect();
        let mut call = query(statement.text())
            .bind(seqs(&all))
            .bind(ids(&all))
            .bind(sinks(&all))
            .bind(
                outcomes
                    .iter()
                    .map(|o| i32::from(o.lease.shard))
                    .collect::<Vec<_>>(),
            )
            .bind(outcomes.iter().map(|o| o.lease.token).collect::<Vec<_>>())
            .bind(durable);
        if self.options.keep != PublishedKeep::None {
            let receipts = Receipts::of(&all);
            call = call
                .bind(receipts.attempts)
                .bind(receipts.streams)
                .bind(receipts.positions);
        }
        let mut deleted = HashSet::with_capacity(outcomes.len());
        for row in self.relay.rows(SETTLING, call).await? {
            deleted.insert(self.column::<i64>(SETTLING, &row, 0)?);
        }
        Ok(outcomes.iter().map(|o| deleted.contains(&o.seq)).collect())
    }

    async fn settle_mixed(
        &self,
        outcomes: &[Outcome],
        durable: bool,
    ) -> Result<Vec<bool>, SourceError> {
        let mut session = self.relay.transaction(SETTLING, durable).await?;
        let facts = self.look(&mut session, outcomes).await?;
        let settlement = Settlement::decide(outcomes, facts);
        self.write(&mut session, &settlement).await?;
        session.finish(SETTLING).await?;
        Ok(settlement.flags)
    }

    /// Locks leases and rows, then reads what is done: in this order, so that it sees what those committed
    /// whom it waited for.
    async fn look(
        &self,
        session: &mut Session<'_>,
        outcomes: &[Outcome],
    ) -> Result<Facts, SourceError> {
        let mut shards: Vec<i32> = outcomes.iter().map(|o| i32::from(o.lease.shard)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut facts = Facts::default();
        let call = query(self.sql.settle_leases.text()).bind(shards);
        for row in session.rows(SETTLING, call).await? {
            let shard: i32 = self.column(SETTLING, &row, 0)?;
            let token: i64 = self.column(SETTLING, &row, 1)?;
            facts
                .tokens
                .insert(u16::try_from(shard).unwrap_or(u16::MAX), token);
        }
        let mut rows: Vec<(i64, Uuid)> = outcomes.iter().map(|o| (o.seq, o.id)).collect();
        rows.sort_unstable();
        rows.dedup();
        let (seqs, ids): (Vec<i64>, Vec<Uuid>) = rows.into_iter().unzip();
        let call = query(self.sql.settle_lock.text())
            .bind(seqs.clone())
            .bind(ids);
        for row in session.rows(SETTLING, call).await? {
            let seq: i64 = self.column(SETTLING, &row, 0)?;
            facts.rows.insert(seq, self.column(SETTLING, &row, 1)?);
        }
        let call = query(self.sql.settle_done.text()).bind(seqs);
        for row in session.rows(SETTLING, call).await? {
            let seq: i64 = self.column(SETTLING, &row, 0)?;
            let attempts: Option<i64> = self.column(SETTLING, &row, 2)?;
            let position: Option<i64> = self.column(SETTLING, &row, 4)?;
            let receipt = Receipt {
                stream: self.column(SETTLING, &row, 3)?,
                position: position.and_then(|at| u64::try_from(at).ok()),
                duplicate: false,
            };
            let owed = attempts.map(|attempts| u32::try_from(attempts).unwrap_or(u32::MAX));
            facts.marks.entry(seq).or_default().push(Known {
                sink: self.column(SETTLING, &row, 1)?,
                // Published or discarded, it is done: nothing more is asked of it here.
                mark: Mark::Published,
                owed: owed.map(|attempts| (attempts, receipt)),
            });
        }
        Ok(facts)
    }

    async fn write(
        &self,
        session: &mut Session<'_>,
        settlement: &Settlement<'_>,
    ) -> Result<(), SourceError> {
        let history: Vec<&Outcome> = settlement.history.iter().map(Cow::as_ref).collect();
        self.write_history(session, &history).await?;
        self.write_discards(session, &settlement.discards).await?;
        let (done, retries): (Vec<_>, Vec<_>) = settlement
            .marks
            .iter()
            .partition(|marked| marked.mark.done());
        self.write_marks(session, &done).await?;
        let retries: Vec<&Outcome> = retries.iter().map(|marked| marked.outcome).collect();
        self.write_retries(session, &retries).await?;
        if !settlement.deletions.is_empty() {
            let call = query(self.sql.settle_delete.text()).bind(settlement.deletions.clone());
            session.execute(SETTLING, call).await?;
        }
        Ok(())
    }

    async fn write_history(
        &self,
        session: &mut Session<'_>,
        history: &[&Outcome],
    ) -> Result<(), SourceError> {
        let statement = match self.options.keep {
            PublishedKeep::None => None,
            PublishedKeep::Receipt => Some(&self.sql.settle_receipts),
            PublishedKeep::Full => Some(&self.sql.settle_copies),
        };
        if let Some(statement) = statement.filter(|_| !history.is_empty()) {
            let receipts = Receipts::of(history);
            let call = query(statement.text())
                .bind(seqs(history))
                .bind(sinks(history))
                .bind(receipts.attempts)
                .bind(receipts.streams)
                .bind(receipts.positions);
            session.execute(SETTLING, call).await?;
        }
        Ok(())
    }

    async fn write_discards(
        &self,
        session: &mut Session<'_>,
        discards: &[&Outcome],
    ) -> Result<(), SourceError> {
        if discards.is_empty() {
            return Ok(());
        }
        let mut reasons = Vec::new();
        let mut codes = Vec::new();
        let mut errors = Vec::new();
        let mut counts = Vec::new();
        for outcome in discards {
            if let Verdict::Discarded {
                reason,
                code,
                attempts,
                error,
            } = &outcome.verdict
            {
                reasons.push(reason.as_str());
                codes.push(*code);
                errors.push(clean(error, ERROR_LIMIT));
                counts.push(i64::from(*attempts));
            }
        }
        let call = query(self.sql.settle_discards.text())
            .bind(seqs(discards))
            .bind(sinks(discards))
            .bind(reasons)
            .bind(codes)
            .bind(errors)
            .bind(counts)
            .bind(routes(discards));
        session.execute(SETTLING, call).await?;
        Ok(())
    }

    async fn write_marks(
        &self,
        session: &mut Session<'_>,
        marks: &[&Marked<'_>],
    ) -> Result<(), SourceError> {
        if marks.is_empty() {
            return Ok(());
        }
        let states: Vec<&str> = marks.iter().map(|marked| marked.mark.as_str()).collect();
        let kept: Vec<bool> = marks.iter().map(|marked| marked.kept).collect();
        let marks: Vec<&Outcome> = marks.iter().map(|marked| marked.outcome).collect();
        let receipts = Receipts::of(&marks);
        let call = query(self.sql.settle_marks.text())
            .bind(seqs(&marks))
            .bind(sinks(&marks))
            .bind(states)
            .bind(receipts.attempts)
            .bind(routes(&marks))
            .bind(receipts.streams)
            .bind(receipts.positions)
            .bind(kept);
        session.execute(SETTLING, call).await?;
        Ok(())
    }

    async fn write_retries(
        &self,
        session: &mut Session<'_>,
        retries: &[&Outcome],
    ) -> Result<(), SourceError> {
        if retries.is_empty() {
            return Ok(());
        }
        let mut pauses = Vec::new();
        let mut errors = Vec::new();
        for outcome in retries {
            if let Verdict::Retried {
                retry_in, error, ..
            } = &outcome.verdict
            {
                pauses.push(micros(*retry_in));
                errors.push(clean(error, ERROR_LIMIT));
            }
        }
        let call = query(self.sql.settle_retries.text())
            .bind(seqs(retries))
            .bind(sinks(retries))
            .bind(retries.iter().map(|o| attempts(o)).collect::<Vec<_>>())
            .bind(pauses)
            .bind(errors)
            .bind(routes(retries));
        session.execute(SETTLING, call).await?;
        Ok(())
    }
}

/// Can the whole batch go in one statement? Published events only, each for a single sink, each once.
fn simple(outcomes: &[Outcome]) -> bool {
    let mut seen = HashSet::with_capacity(outcomes.len());
    outcomes.iter().all(|outcome| {
        matches!(outcome.verdict, Verdict::Published { .. })
            && outcome.route.iter().all(|sink| *sink == outcome.sink)
            && seen.insert(outcome.seq)
    })
}

/// The columns of acknowledgements.
struct Receipts<'a> {
    attempts: Vec<i64>,
    streams: Vec<Option<Cow<'a, str>>>,
    positions: Vec<Option<i64>>,
}

impl<'a> Receipts<'a> {
    fn of(outcomes: &[&'a Outcome]) -> Self {
        let mut columns = Self {
            attempts: Vec::with_capacity(outcomes.len()),
            streams: Vec::with_capacity(outcomes.len()),
            positions: Vec::with_capacity(outcomes.len()),
        };
        for outcome in outcomes {
            let receipt = match &outcome.verdict {
                Verdict::Published { receipt, .. } => Some(receipt),
                Verdict::Retried { .. } | Verdict::Discarded { .. } => None,
            };
            let stream = receipt.and_then(|receipt| receipt.stream.as_deref());
            let position = receipt.and_then(|receipt| receipt.position);
            columns.attempts.push(attempts(outcome));
            columns
                .streams
                .push(stream.map(|name| clean(name, STREAM_CHARS)));
            columns
                .positions
                .push(position.and_then(|at| i64::try_from(at).ok()));
        }
        columns
    }
}

fn seqs(outcomes: &[&Outcome]) -> Vec<i64> {
    outcomes.iter().map(|o| o.seq).collect()
}

fn ids(outcomes: &[&Outcome]) -> Vec<Uuid> {
    outcomes.iter().map(|o| o.id).collect()
}

fn sinks<'a>(outcomes: &[&'a Outcome]) -> Vec<&'a str> {
    outcomes.iter().map(|o| &*o.sink).collect()
}

fn attempts(outcome: &Outcome) -> i64 {
    match outcome.verdict {
        Verdict::Published { attempts, .. }
        | Verdict::Retried { attempts, .. }
        | Verdict::Discarded { attempts, .. } => i64::from(attempts),
    }
}

/// Routes as JSON texts, since arrays of arrays must be rectangles. Few distinct ones exist.
fn routes(outcomes: &[&Outcome]) -> Vec<String> {
    let mut written: HashMap<*const std::sync::Arc<str>, String> = HashMap::new();
    outcomes
        .iter()
        .map(|o| {
            written
                .entry(o.route.as_ptr())
                .or_insert_with(|| {
                    let names: Vec<&str> = o.route.iter().map(|sink| &**sink).collect();
                    serde_json::Value::from(names).to_string()
                })
                .clone()
        })
        .collect()
}
