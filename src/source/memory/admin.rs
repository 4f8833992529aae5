//! [`Admin`] in memory.

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use super::Memory;
use super::store::{Dead, Delivery, Store};
use crate::event::Payload;
use crate::source::admin::{
    Admin, Discarded, DiscardedFilter, InstanceView, Migrated, NewEvent, Operator,
    PendingMigration, SinkCount, Status,
};
use crate::source::settlement::Mark;
use crate::source::{Source, SourceError, SourceErrorKind};
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
        })
    }

    async fn discarded(
        &self,
        filter: &DiscardedFilter,
        limit: u32,
    ) -> Result<Vec<Discarded>, SourceError> {
        let store = self.store();
        let newest_first = store.discarded.iter().rev();
        let found = newest_first.filter(|dead| selected(filter, &dead.shown));
        let found = found.take(limit as usize);
        Ok(found.map(|dead| dead.shown.clone()).collect())
    }

    async fn requeue(&self, filter: &DiscardedFilter, _by: &Operator) -> Result<u64, SourceError> {
        let count = {
            let mut store = self.store();
            let taken = take(&mut store, filter);
            let mut seqs: Vec<i64> = taken.iter().map(|dead| dead.row.seq).collect();
            let count = seqs.len() as u64;
            for dead in &taken {
                put_back(&mut store, dead, &taken);
            }
            if count > 0 {
                seqs.sort_unstable();
                seqs.dedup();
                store.commands.push(seqs);
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
        Ok(take(&mut self.store(), filter).len() as u64)
    }

    async fn pending_kinds(&self, limit: u32) -> Result<Vec<String>, SourceError> {
        let store = self.store();
        let mut kinds: Vec<String> = store.rows.values().map(|row| row.kind.clone()).collect();
        kinds.sort();
        kinds.dedup();
        kinds.truncate(limit as usize);
        Ok(kinds)
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

fn selected(filter: &DiscardedFilter, dead: &Discarded) -> bool {
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
}

fn take(store: &mut Store, filter: &DiscardedFilter) -> Vec<Dead> {
    let all = std::mem::take(&mut store.discarded);
    let (taken, left) = all
        .into_iter()
        .partition(|dead| selected(filter, &dead.shown));
    store.discarded = left;
    taken
}

/// The row is pending again for the sinks of `taken`, and done for the rest of its route.
fn put_back(store: &mut Store, dead: &Dead, taken: &[Dead]) {
    let seq = dead.row.seq;
    if !store.rows.contains_key(&seq) {
        store.show(dead.row.clone());
        for sink in dead.route.iter() {
            let done = Delivery {
                mark: Mark::Published,
                attempts: 0,
                last_error: None,
                next_at: None,
                route: dead.route.clone(),
                kept: None,
            };
            store.deliveries.insert((seq, sink.to_string()), done);
        }
    }
    for other in taken.iter().filter(|other| other.row.seq == seq) {
        store.deliveries.remove(&(seq, other.shown.sink.clone()));
    }
}
