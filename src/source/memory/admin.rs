//! [`Admin`] in memory.

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::Memory;
use super::store::{Dead, Delivery, Store, Told, later};
use crate::event::{Payload, Timestamp};
use crate::source::admin::{
    Admin, Discarded, DiscardedFilter, InstanceView, Migrated, NewEvent, Operator, Overtakes,
    PendingMigration, SinkCount, Status,
};
use crate::source::settlement::Mark;
use crate::source::trail::{Hand, Known, Take, Tally, Window};
use crate::source::waiting::{KeyEvent, KeyName, Pick, Waiting};
use crate::source::{Pause, Source, SourceError, SourceErrorKind, Target};
use crate::testing::source::NewRow;

#[async_trait]
impl Admin for Memory {
    async fn migrate(&self) -> Result<Migrated, SourceError> {
        Ok(Migrated { from: 1, to: 1 })
    }

    async fn pending_sql(&self) -> Result<Vec<PendingMigration>, SourceError> {
        Ok(Vec::new())
    }

    async fn publish(&self, events: &[NewEvent]) -> Result<Vec<Uuid>, SourceError> {
        let rows = events.iter().map(new_row).collect::<Result<Vec<_>, _>>()?;
        let inserted = self.insert(&rows)?;
        Ok(inserted.into_iter().map(|row| row.id).collect())
    }

    async fn status(&self) -> Result<Status, SourceError> {
        let (backlog, leases) = (self.backlog().await?, self.leases().await?);
        let (now, store) = (self.now(), self.store());
        let instances = store.instances.values().map(|(beat, at)| InstanceView {
            instance: beat.instance,
            host: beat.host.clone(),
            version: beat.version.to_owned(),
            listening: beat.listening,
            seen_s: (now.0 - at.0) as f64 / 1e6,
            report: serde_json::from_str(&beat.report).unwrap_or_default(),
        });
        let mut discarded: Vec<SinkCount> = Vec::new();
        for dead in &store.discarded {
            match discarded
                .iter_mut()
                .find(|count| count.sink == dead.shown.sink)
            {
                Some(count) => count.count += 1,
                None => discarded.push(SinkCount {
                    sink: dead.shown.sink.clone(),
                    count: 1,
                }),
            }
        }
        Ok(Status {
            backlog,
            leases,
            instances: instances.collect(),
            discarded,
            pauses: store.pauses.values().cloned().collect(),
        })
    }

    async fn discarded(
        &self,
        filter: &DiscardedFilter,
        limit: u32,
    ) -> Result<Vec<Discarded>, SourceError> {
        let (now, store) = (self.now(), self.store());
        let newest_first = store.discarded.iter().rev();
        let found = newest_first.filter(|dead| selected(filter, dead, now));
        let found = found.take(limit as usize);
        Ok(found.map(|dead| dead.shown.clone()).collect())
    }

    async fn requeue(&self, filter: &DiscardedFilter, _by: &Operator) -> Result<u64, SourceError> {
        let count = {
            let (now, mut store) = (self.now(), self.store());
            let taken = take(&mut store, filter, now, Hand::Requeued);
            let mut seqs: Vec<i64> = taken.iter().map(|dead| dead.row.seq).collect();
            let count = seqs.len() as u64;
            for dead in &taken {
                put_back(&mut store, dead, &taken, now);
            }
            if count > 0 {
                seqs.sort_unstable();
                seqs.dedup();
                store.commands.push(Told::Look(seqs));
            }
            count
        };
        self.notify();
        Ok(count)
    }

    async fn drop_discarded(
        &self,
        filter: &DiscardedFilter,
        _by: &Operator,
    ) -> Result<u64, SourceError> {
        let now = self.now();
        Ok(take(&mut self.store(), filter, now, Hand::Dropped).len() as u64)
    }

    async fn overtakes(&self, filter: &DiscardedFilter) -> Result<Overtakes, SourceError> {
        Ok(self.look_ahead(filter))
    }

    async fn pauses(&self) -> Result<Vec<Pause>, SourceError> {
        Ok(self.store().pauses.values().cloned().collect())
    }

    async fn pause(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        self.hold(target, by)
    }

    async fn resume(&self, target: &Target, _by: &Operator) -> Result<bool, SourceError> {
        Ok(self.let_go(target))
    }

    async fn waiting(&self, sink: Option<&str>, limit: u32) -> Result<Vec<Waiting>, SourceError> {
        Ok(self.list_waiting(sink, limit))
    }

    async fn key_events(
        &self,
        sink: &str,
        key: &KeyName,
        limit: u32,
    ) -> Result<Vec<KeyEvent>, SourceError> {
        Ok(self.read_key(sink, key, limit))
    }

    async fn hurry(&self, picks: &[Pick], _by: &Operator) -> Result<u64, SourceError> {
        Ok(self.retry_now(picks))
    }

    async fn skip(&self, picks: &[Pick], by: &Operator) -> Result<u64, SourceError> {
        Ok(self.mark_skipped(picks, by))
    }

    async fn pending_kinds(&self, limit: u32) -> Result<Vec<String>, SourceError> {
        let store = self.store();
        let mut kinds: Vec<String> = store.rows.values().map(|row| row.kind.clone()).collect();
        kinds.sort();
        kinds.dedup();
        kinds.truncate(limit as usize);
        Ok(kinds)
    }

    async fn trail(&self, sink: &str, window: Window, take: Take<'_>) -> Result<(), SourceError> {
        self.walk_trail(sink, window, take);
        Ok(())
    }

    async fn tally(&self, sink: &str, window: Window) -> Result<Tally, SourceError> {
        Ok(self.count_trail(sink, window))
    }

    async fn trace(
        &self,
        events: &[(Option<i64>, Uuid)],
    ) -> Result<Vec<Option<Known>>, SourceError> {
        Ok(self.look_up(events))
    }

    async fn hands(&self, sink: &str, seqs: &[i64]) -> Result<Vec<(i64, Hand)>, SourceError> {
        Ok(self.list_hands(sink, seqs))
    }
}

fn new_row(event: &NewEvent) -> Result<NewRow, SourceError> {
    let payload = match (&event.payload, &event.payload_bytes) {
        (Some(json), None) => Payload::Json(Bytes::from(json.get().to_owned())),
        (None, Some(bytes)) => Payload::Bytes(Bytes::from(bytes.clone())),
        _ => {
            let words = "an event has exactly one of payload and payload_bytes";
            return Err(SourceError::new(SourceErrorKind::Refused, words));
        }
    };
    let headers = serde_json::to_string(&event.headers).map_err(|error| {
        SourceError::new(SourceErrorKind::Refused, "headers are no JSON").caused_by(error)
    })?;
    Ok(NewRow {
        kind: event.kind.clone(),
        ordering_key: event.ordering_key.clone(),
        payload,
        content_type: event.content_type.clone(),
        headers: Some(headers),
        delay: event.delay.unwrap_or_default(),
        id: event.id,
    })
}

pub(super) fn selected(filter: &DiscardedFilter, dead: &Dead, now: Timestamp) -> bool {
    let at = dead.at;
    let dead = &dead.shown;
    let kind = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => dead.kind.starts_with(prefix),
        None => dead.kind == pattern,
    };
    (filter.ids.is_empty() || filter.ids.contains(&dead.id))
        && filter.sink.as_ref().is_none_or(|sink| *sink == dead.sink)
        && filter.kind.as_deref().is_none_or(kind)
        && (filter.ordering_key.is_none() || filter.ordering_key == dead.ordering_key)
        && filter
            .reason
            .as_ref()
            .is_none_or(|reason| *reason == dead.reason)
        && (filter.code.is_none() || filter.code == dead.code)
        && filter.older_than.is_none_or(|age| later(at, age) <= now)
}

fn take(store: &mut Store, filter: &DiscardedFilter, now: Timestamp, hand: Hand) -> Vec<Dead> {
    let all = std::mem::take(&mut store.discarded);
    let (taken, left): (Vec<Dead>, _) = all
        .into_iter()
        .partition(|dead| selected(filter, dead, now));
    store.discarded = left;
    for dead in &taken {
        store
            .hands
            .push((dead.shown.sink.clone(), dead.row.seq, hand));
    }
    taken
}

/// The row is pending again for the sinks of `taken`, and done for the rest of its route.
fn put_back(store: &mut Store, dead: &Dead, taken: &[Dead], now: Timestamp) {
    let seq = dead.row.seq;
    if !store.rows.contains_key(&seq) {
        store.show(dead.row.clone());
        for sink in dead.route.iter() {
            let done = Delivery {
                mark: Mark::Published,
                attempts: 0,
                next_at: None,
                last_error: None,
                failed_at: None,
                at: now,
                skip: None,
                route: dead.route.clone(),
                receipt: None,
                owed: None,
            };
            store.deliveries.insert((seq, sink.to_string()), done);
        }
    }
    for other in taken.iter().filter(|other| other.row.seq == seq) {
        store.deliveries.remove(&(seq, other.shown.sink.clone()));
    }
}
