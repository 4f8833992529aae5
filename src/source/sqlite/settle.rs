//! Writing outcomes: a handful of statements in one transaction, whatever the size of the batch.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::json as value;
use sqlx::AssertSqlSafe;

use super::connection::Taken;
use super::decode;
use super::error::Failure;
use super::{Sqlite, json};
use crate::event::Timestamp;
use crate::sink::Receipt;
use crate::source::settlement::{Facts, Known, Mark, Marked, Settlement, clean};
use crate::source::{Outcome, PublishedKeep, SourceError, Verdict};

impl Sqlite {
    pub(super) async fn write_outcomes(
        &self,
        outcomes: &[Outcome],
        durable: bool,
    ) -> Result<Vec<bool>, SourceError> {
        if outcomes.is_empty() {
            return Ok(Vec::new());
        }
        // A discard is the last that is heard of an event: it is not lost with the power.
        let discard = |outcome: &Outcome| matches!(outcome.verdict, Verdict::Discarded { .. });
        let durable = durable || outcomes.iter().any(discard);
        let settle = async {
            let mut taken = self.writer.take().await?;
            taken.begin(durable).await?;
            let facts = facts(&mut taken, outcomes).await?;
            let settlement = Settlement::decide(outcomes, facts);
            self.carry_out(&mut taken, &settlement).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(settlement.flags)
        };
        self.writer.limited("settle", settle).await
    }

    async fn carry_out(
        &self,
        taken: &mut Taken<'_>,
        settlement: &Settlement<'_>,
    ) -> Result<(), Failure> {
        let now = Timestamp::now();
        let published: Vec<_> = settlement
            .history
            .iter()
            .filter_map(|outcome| published(outcome))
            .collect();
        self.insert_history(taken, published, now).await?;
        if !settlement.discards.is_empty() {
            let rows: Vec<_> = settlement
                .discards
                .iter()
                .filter_map(|o| discarded(o))
                .collect();
            write(
                taken,
                include_str!("sql/insert_discarded.sql"),
                json(rows),
                now,
            )
            .await?;
        }
        if !settlement.marks.is_empty() {
            let marks = settlement.marks.iter();
            let rows: Vec<_> = marks.map(|marked| delivery(marked, now)).collect();
            write(
                taken,
                include_str!("sql/upsert_delivery.sql"),
                json(rows),
                now,
            )
            .await?;
        }
        delete(taken, &settlement.deletions).await
    }

    /// Writes rows of the history: `[seq, id, sink, attempts, stream, position]`.
    async fn insert_history(
        &self,
        taken: &mut Taken<'_>,
        rows: Vec<serde_json::Value>,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let statement = match self.options.keep {
            PublishedKeep::None => return Ok(()),
            PublishedKeep::Receipt => include_str!("sql/insert_published_receipt.sql"),
            PublishedKeep::Full => include_str!("sql/insert_published_full.sql"),
        };
        match rows.is_empty() {
            true => Ok(()),
            false => write(taken, statement, json(rows), now).await,
        }
    }

    pub(super) async fn remove_done(
        &self,
        required: &[Arc<str>],
        limit: u32,
    ) -> Result<u64, SourceError> {
        let Some(first) = required.first() else {
            return Ok(0);
        };
        let required = json(required);
        // Looked for without the write lock, since the walk may be long and mostly finds nothing.
        let find = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_scalar(include_str!("sql/done.sql"))
                .bind(&**first)
                .bind(&required)
                .bind(i64::from(limit));
            let seqs: Vec<i64> = query.fetch_all(taken.sql()).await?;
            taken.give_back();
            Ok(seqs)
        };
        let found = self
            .reader
            .limited("look for finished events", find)
            .await?;
        if found.is_empty() {
            return Ok(0);
        }
        let remove = async {
            let mut taken = self.writer.take().await?;
            taken.begin(false).await?;
            let query = sqlx::query_scalar(include_str!("sql/done_among.sql"))
                .bind(&**first)
                .bind(&required)
                .bind(json(&found));
            let seqs: Vec<i64> = query.fetch_all(taken.sql()).await?;
            type Fact = (i64, Vec<u8>, String, i64, Option<String>, Option<i64>);
            let query = sqlx::query_as(include_str!("sql/facts.sql")).bind(json(&seqs));
            let facts: Vec<Fact> = query.fetch_all(taken.sql()).await?;
            let rows = facts
                .into_iter()
                .map(|(seq, id, sink, attempts, stream, position)| {
                    let id = decode::id(&id).hyphenated().to_string();
                    value!([seq, id, sink, attempts, stream, position])
                });
            self.insert_history(&mut taken, rows.collect(), Timestamp::now())
                .await?;
            delete(&mut taken, &seqs).await?;
            taken.commit().await?;
            taken.give_back();
            Ok(seqs.len() as u64)
        };
        self.writer.limited("delete finished events", remove).await
    }
}

/// What the database holds about the rows of the batch. The write lock keeps it true.
async fn facts(taken: &mut Taken<'_>, outcomes: &[Outcome]) -> Result<Facts, Failure> {
    let seqs: BTreeSet<i64> = outcomes.iter().map(|outcome| outcome.seq).collect();
    let seqs = json(seqs);
    let query = sqlx::query_as(include_str!("sql/tokens.sql"));
    let tokens: Vec<(i64, i64)> = query.fetch_all(taken.sql()).await?;
    let query = sqlx::query_as(include_str!("sql/ids.sql")).bind(&seqs);
    let rows: Vec<(i64, Vec<u8>)> = query.fetch_all(taken.sql()).await?;
    let query = sqlx::query_as(include_str!("sql/marks.sql")).bind(&seqs);
    type Found = (
        i64,
        String,
        String,
        Option<u32>,
        Option<String>,
        Option<i64>,
    );
    let found: Vec<Found> = query.fetch_all(taken.sql()).await?;
    let mut marks: HashMap<i64, Vec<Known>> = HashMap::new();
    for (seq, sink, state, owed, stream, position) in found {
        let mark = match &*state {
            "published" => Mark::Published,
            "discarded" => Mark::Discarded,
            _ => Mark::Retrying,
        };
        let receipt = Receipt {
            stream,
            position: position.and_then(|at| u64::try_from(at).ok()),
            duplicate: false,
        };
        let owed = owed.map(|attempts| (attempts, receipt));
        let known = Known { sink, mark, owed };
        marks.entry(seq).or_default().push(known);
    }
    let shard = |shard: i64| u16::try_from(shard).ok();
    Ok(Facts {
        tokens: tokens
            .into_iter()
            .filter_map(|(s, token)| Some((shard(s)?, token)))
            .collect(),
        rows: rows
            .into_iter()
            .map(|(seq, id)| (seq, decode::id(&id)))
            .collect(),
        marks,
    })
}

async fn write(
    taken: &mut Taken<'_>,
    statement: &'static str,
    rows: String,
    now: Timestamp,
) -> Result<(), Failure> {
    let query = sqlx::query(AssertSqlSafe(statement))
        .bind(rows)
        .bind(now.to_string());
    query.execute(taken.sql()).await?;
    Ok(())
}

async fn delete(taken: &mut Taken<'_>, seqs: &[i64]) -> Result<(), Failure> {
    if seqs.is_empty() {
        return Ok(());
    }
    let seqs = json(seqs);
    for statement in [
        include_str!("sql/delete_events.sql"),
        include_str!("sql/delete_deliveries.sql"),
    ] {
        sqlx::query(statement)
            .bind(&seqs)
            .execute(taken.sql())
            .await?;
    }
    Ok(())
}

fn published(outcome: &Outcome) -> Option<serde_json::Value> {
    let Verdict::Published { attempts, receipt } = &outcome.verdict else {
        return None;
    };
    let id = outcome.id.hyphenated().to_string();
    let position = receipt
        .position
        .and_then(|position| i64::try_from(position).ok());
    let stream = receipt.stream.as_deref();
    Some(value!([
        outcome.seq,
        id,
        &*outcome.sink,
        attempts,
        stream,
        position
    ]))
}

fn discarded(outcome: &Outcome) -> Option<serde_json::Value> {
    let Verdict::Discarded {
        reason,
        code,
        attempts,
        error,
    } = &outcome.verdict
    else {
        return None;
    };
    let id = outcome.id.hyphenated().to_string();
    let (sink, route, reason) = (&*outcome.sink, json(&outcome.route), reason.as_str());
    Some(value!([
        outcome.seq,
        id,
        sink,
        reason,
        code,
        attempts,
        clean(error),
        route
    ]))
}

/// `[seq, sink, state, attempts, next_at, error, route, stream, position, kept]`.
fn delivery(marked: &Marked<'_>, now: Timestamp) -> serde_json::Value {
    let Marked {
        mark,
        kept,
        outcome,
    } = marked;
    let (seq, sink, route) = (outcome.seq, &*outcome.sink, json(&outcome.route));
    let state = mark.as_str();
    match &outcome.verdict {
        Verdict::Published { attempts, receipt } => {
            let position = receipt
                .position
                .and_then(|position| i64::try_from(position).ok());
            let stream = receipt.stream.as_deref();
            value!([
                seq, sink, state, attempts, null, null, route, stream, position, kept
            ])
        }
        Verdict::Retried {
            attempts,
            retry_in,
            error,
        } => {
            let next = decode::later(now, *retry_in).to_string();
            value!([
                seq,
                sink,
                state,
                attempts,
                next,
                clean(error),
                route,
                null,
                null,
                kept
            ])
        }
        Verdict::Discarded {
            attempts, error, ..
        } => {
            value!([
                seq,
                sink,
                state,
                attempts,
                null,
                clean(error),
                route,
                null,
                null,
                kept
            ])
        }
    }
}
