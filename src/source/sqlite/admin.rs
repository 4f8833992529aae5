//! [`Admin`] for SQLite.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json as value;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::connection::Taken;
use super::decode::{self, earlier, later};
use super::error::Failure;
use super::{Sqlite, json};
use crate::event::Timestamp;
use crate::source::admin::{
    Admin, Discarded, DiscardedFilter, InstanceView, Migrated, NewEvent, Operator, Overtakes,
    PendingMigration, SinkCount, Status, base64,
};
use crate::source::trail::{Hand, Known, Take, Tally, Window};
use crate::source::waiting::{KeyEvent, KeyName, Pick, Waiting};
use crate::source::{Pause, Source as _, SourceError, Target};

#[async_trait]
impl Admin for Sqlite {
    async fn migrate(&self) -> Result<Migrated, SourceError> {
        self.bring_up_to_date().await
    }

    async fn pending_sql(&self) -> Result<Vec<PendingMigration>, SourceError> {
        self.pending().await
    }

    async fn publish(&self, events: &[NewEvent]) -> Result<Vec<Uuid>, SourceError> {
        let publish = async {
            let mut taken = self.writer.take().await?;
            taken.begin(true).await?;
            let mut ids = Vec::with_capacity(events.len());
            for event in events {
                ids.push(insert(&mut taken, event).await?);
            }
            taken.commit().await?;
            taken.give_back();
            Ok(ids)
        };
        let ids = self.writer.limited("publish", publish).await?;
        self.notify();
        Ok(ids)
    }

    async fn status(&self) -> Result<Status, SourceError> {
        /// An instance that was silent for longer is not shown.
        const ALIVE: Duration = Duration::from_secs(60);
        type Instance = (String, String, String, bool, String, String);
        let (backlog, leases) = (self.backlog().await?, self.leases().await?);
        let now = Timestamp::now();
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_as(include_str!("sql/instances.sql"));
            let query = query.bind(earlier(now, ALIVE).to_string());
            let instances: Vec<Instance> = query.fetch_all(taken.sql()).await?;
            let query = sqlx::query_as(include_str!("sql/discarded_counts.sql"));
            let counts: Vec<(String, i64)> = query.fetch_all(taken.sql()).await?;
            let pauses = super::operate::pauses(&mut taken).await?;
            taken.give_back();
            Ok((instances, counts, pauses))
        };
        let (instances, counts, pauses) = self.reader.limited("read the status", read).await?;
        let view = |(instance, host, version, listening, report, seen): Instance| InstanceView {
            instance: decode::id(instance.as_bytes()),
            host,
            version,
            listening,
            seen_s: decode::moment(seen.as_bytes())
                .map_or(0.0, |seen| decode::seconds_since(seen, now).max(0.0)),
            report: serde_json::from_str(&report).unwrap_or_default(),
        };
        let count = |(sink, count): (String, i64)| SinkCount {
            sink,
            count: count as u64,
        };
        Ok(Status {
            backlog,
            leases,
            instances: instances.into_iter().map(view).collect(),
            discarded: counts.into_iter().map(count).collect(),
            pauses,
        })
    }

    async fn discarded(
        &self,
        filter: &DiscardedFilter,
        limit: u32,
    ) -> Result<Vec<Discarded>, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let conditions = Conditions::of(filter);
            let query = conditions.bind(sqlx::query(include_str!("sql/discarded.sql")));
            let rows = query.bind(i64::from(limit)).fetch_all(taken.sql()).await?;
            let rows: Result<Vec<Discarded>, sqlx::Error> = rows.iter().map(shown).collect();
            taken.give_back();
            Ok(rows?)
        };
        self.reader.limited("list discarded events", read).await
    }

    async fn requeue(&self, filter: &DiscardedFilter, by: &Operator) -> Result<u64, SourceError> {
        let requeue = async {
            let mut taken = self.writer.take().await?;
            taken.begin(true).await?;
            let chosen = Chosen::by(&mut taken, filter).await?;
            if !chosen.numbers.is_empty() {
                let now = Timestamp::now().to_string();
                let numbers = json(&chosen.numbers);
                let query = sqlx::query(include_str!("sql/requeue_marks.sql"));
                query.bind(&numbers).bind(&now).execute(taken.sql()).await?;
                let query = sqlx::query(include_str!("sql/requeue_events.sql"));
                query.bind(&numbers).execute(taken.sql()).await?;
                let query = sqlx::query(include_str!("sql/requeue_unmark.sql"));
                query.bind(&numbers).execute(taken.sql()).await?;
                super::operate::tell(&mut taken, "look", &chosen.seqs, by).await?;
                chosen.remove(&mut taken, "requeue", by).await?;
            }
            taken.commit().await?;
            taken.give_back();
            Ok(chosen.numbers.len() as u64)
        };
        let count = self.writer.limited("requeue", requeue).await?;
        self.notify();
        Ok(count)
    }

    async fn drop_discarded(
        &self,
        filter: &DiscardedFilter,
        by: &Operator,
    ) -> Result<u64, SourceError> {
        let drop = async {
            let mut taken = self.writer.take().await?;
            taken.begin(true).await?;
            let chosen = Chosen::by(&mut taken, filter).await?;
            if !chosen.numbers.is_empty() {
                chosen.remove(&mut taken, "drop", by).await?;
            }
            taken.commit().await?;
            taken.give_back();
            Ok(chosen.numbers.len() as u64)
        };
        self.writer.limited("drop discarded events", drop).await
    }

    async fn overtakes(&self, filter: &DiscardedFilter) -> Result<Overtakes, SourceError> {
        self.look_ahead(filter).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, SourceError> {
        self.list_pauses().await
    }

    async fn pause(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        self.hold(target, by).await
    }

    async fn resume(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        self.let_go(target, by).await
    }

    async fn waiting(&self, sink: Option<&str>, limit: u32) -> Result<Vec<Waiting>, SourceError> {
        self.list_waiting(sink, limit).await
    }

    async fn key_events(
        &self,
        sink: &str,
        key: &KeyName,
        limit: u32,
    ) -> Result<Vec<KeyEvent>, SourceError> {
        self.read_key(sink, key, limit).await
    }

    async fn hurry(&self, picks: &[Pick], by: &Operator) -> Result<u64, SourceError> {
        self.retry_now(picks, by).await
    }

    async fn skip(&self, picks: &[Pick], by: &Operator) -> Result<u64, SourceError> {
        self.mark_skipped(picks, by).await
    }

    async fn pending_kinds(&self, limit: u32) -> Result<Vec<String>, SourceError> {
        let read = async {
            let mut taken = self.reader.take().await?;
            let query = sqlx::query_scalar(include_str!("sql/pending_kinds.sql"));
            let kinds: Vec<Vec<u8>> = query.bind(i64::from(limit)).fetch_all(taken.sql()).await?;
            taken.give_back();
            Ok(kinds.into_iter().map(decode::text).collect())
        };
        self.reader.limited("read pending kinds", read).await
    }

    async fn trail(&self, sink: &str, window: Window, take: Take<'_>) -> Result<(), SourceError> {
        self.walk_trail(sink, window, take).await
    }

    async fn tally(&self, sink: &str, window: Window) -> Result<Tally, SourceError> {
        self.count_trail(sink, window).await
    }

    async fn trace(
        &self,
        events: &[(Option<i64>, Uuid)],
    ) -> Result<Vec<Option<Known>>, SourceError> {
        self.look_up(events).await
    }

    async fn hands(&self, _sink: &str, seqs: &[i64]) -> Result<Vec<(i64, Hand)>, SourceError> {
        self.list_hands(seqs).await
    }
}

async fn insert(taken: &mut Taken<'_>, event: &NewEvent) -> Result<Uuid, Failure> {
    let id = event.id.unwrap_or_else(Uuid::now_v7);
    let now = Timestamp::now();
    let due = later(now, event.delay.unwrap_or_default());
    let query = sqlx::query(include_str!("sql/insert_event.sql"))
        .bind(id.hyphenated().to_string())
        .bind(&event.kind)
        .bind(&event.ordering_key)
        .bind(now.to_string())
        .bind(due.to_string())
        .bind(&event.content_type)
        .bind(json(&event.headers))
        .bind(event.payload.as_ref().map(|payload| payload.get()))
        .bind(&event.payload_bytes);
    query.execute(taken.sql()).await?;
    Ok(id)
}

/// A filter as the statements take it.
pub(super) struct Conditions<'a> {
    ids: Option<String>,
    until: Option<String>,
    kind: Option<&'a str>,
    prefix: Option<&'a str>,
    filter: &'a DiscardedFilter,
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

impl<'a> Conditions<'a> {
    pub(super) fn of(filter: &'a DiscardedFilter) -> Self {
        let ids = filter.ids.iter().map(|id| id.hyphenated().to_string());
        let ids: Vec<String> = ids.collect();
        let kind = filter.kind.as_deref();
        let prefix = kind.and_then(|kind| kind.strip_suffix('*'));
        Self {
            ids: (!ids.is_empty()).then(|| json(ids)),
            until: filter
                .older_than
                .map(|age| earlier(Timestamp::now(), age).to_string()),
            kind: kind.filter(|_| prefix.is_none()),
            prefix,
            filter,
        }
    }

    pub(super) fn bind<'q>(&self, query: Query<'q>) -> Query<'q> {
        query
            .bind(self.ids.clone())
            .bind(self.filter.sink.clone())
            .bind(self.kind.map(str::to_owned))
            .bind(self.prefix.map(str::to_owned))
            .bind(self.filter.ordering_key.clone())
            .bind(self.filter.reason.clone())
            .bind(self.filter.code.clone())
            .bind(self.until.clone())
    }
}

/// Discarded events that a command is about.
struct Chosen {
    numbers: Vec<i64>,
    /// Their places, each once, ascending.
    seqs: Vec<i64>,
}

impl Chosen {
    async fn by(taken: &mut Taken<'_>, filter: &DiscardedFilter) -> Result<Self, Failure> {
        let conditions = Conditions::of(filter);
        let query = conditions.bind(sqlx::query(include_str!("sql/discarded_numbers.sql")));
        let rows = query.fetch_all(taken.sql()).await?;
        let mut chosen = Self {
            numbers: Vec::with_capacity(rows.len()),
            seqs: Vec::with_capacity(rows.len()),
        };
        for row in rows {
            chosen.numbers.push(row.try_get(0)?);
            chosen.seqs.push(row.try_get(1)?);
        }
        chosen.seqs.sort_unstable();
        chosen.seqs.dedup();
        Ok(chosen)
    }

    /// Deletes them, and writes down who wanted it.
    async fn remove(
        &self,
        taken: &mut Taken<'_>,
        action: &str,
        by: &Operator,
    ) -> Result<(), Failure> {
        let query = sqlx::query(include_str!("sql/delete_discarded.sql"));
        query.bind(json(&self.numbers)).execute(taken.sql()).await?;
        let detail = value!({ "count": self.numbers.len(), "seqs": self.seqs });
        super::operate::audit(taken, action, by, &detail).await
    }
}

/// The columns of `discarded.sql`.
fn shown(row: &SqliteRow) -> Result<Discarded, sqlx::Error> {
    let text: Option<Vec<u8>> = row.try_get(11)?;
    let bytes: Option<Vec<u8>> = row.try_get(12)?;
    Ok(Discarded {
        seq: row.try_get(0)?,
        id: decode::id(row.try_get(1)?),
        sink: row.try_get(2)?,
        kind: decode::text(row.try_get(3)?),
        ordering_key: row.try_get::<Option<Vec<u8>>, _>(4)?.map(decode::text),
        reason: row.try_get(5)?,
        code: row.try_get(6)?,
        last_error: row.try_get(7)?,
        attempts: row.try_get(8)?,
        discarded_at: row.try_get(9)?,
        size: row.try_get::<i64, _>(10)? as u64,
        payload: text
            .map(decode::text)
            .or_else(|| bytes.map(|bytes| base64(&bytes))),
        headers: decode::text(row.try_get(13)?),
    })
}
