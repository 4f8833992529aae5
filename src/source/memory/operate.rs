//! What operators do to keys and flows, in memory.

use std::sync::Arc;

use super::Memory;
use super::admin::selected;
use super::store::{Delivery, Store, Stored, Told, later};
use crate::event::Timestamp;
use crate::source::admin::{DiscardedFilter, Operator, Overtakes};
use crate::source::pause::{MAX_PAUSES, too_many};
use crate::source::settlement::{Mark, clean};
use crate::source::waiting::{BLOCKED, KeyEvent, KeyName, MAX_BEHIND, Pick, Waiting};
use crate::source::{Pause, SourceError, Target};

impl Memory {
    pub(super) fn hold(&self, target: &Target, by: &Operator) -> Result<bool, SourceError> {
        {
            let (now, mut store) = (self.now(), self.store());
            if store.pauses.contains_key(target) {
                return Ok(false);
            }
            if store.pauses.len() >= MAX_PAUSES as usize {
                return Err(too_many());
            }
            let pause = Pause {
                target: target.clone(),
                by: by.name.clone(),
                since: now.to_string(),
                reason: by.reason.clone(),
            };
            store.pauses.insert(target.clone(), pause);
            store.commands.push(Told::PausesChanged);
        }
        self.notify();
        Ok(true)
    }

    pub(super) fn let_go(&self, target: &Target) -> bool {
        {
            let mut store = self.store();
            if store.pauses.remove(target).is_none() {
                return false;
            }
            store.commands.push(Told::PausesChanged);
        }
        self.notify();
        true
    }

    pub(super) fn list_waiting(&self, sink: Option<&str>, limit: u32) -> Vec<Waiting> {
        let (now, store) = (self.now(), self.store());
        let mut failed: Vec<Waiting> = store
            .deliveries
            .iter()
            .filter(|((_, name), delivery)| {
                delivery.mark == Mark::Retrying && sink.is_none_or(|sink| sink == name)
            })
            .filter_map(|((seq, name), _)| {
                let row = store.rows.get(seq)?;
                Some(waiting(&store, row, Some(name), now))
            })
            .collect();
        failed.sort_by_key(|waiting| std::cmp::Reverse(waiting.event.next_at));
        failed.truncate(limit as usize);
        let delayed = store.rows.values().filter(|row| {
            let key = row.ordering_key.as_ref();
            let head = key.is_none_or(|key| {
                let first = store.run(key, i64::MIN).next();
                first.is_some_and(|first| first.seq == row.seq)
            });
            let failed =
                |(_, delivery): (&(i64, String), &Delivery)| delivery.mark == Mark::Retrying;
            let marks = (row.seq, String::new())..(row.seq.saturating_add(1), String::new());
            row.available_at > now && head && !store.deliveries.range(marks).any(failed)
        });
        let delayed = delayed.take(limit as usize);
        failed.extend(delayed.map(|row| waiting(&store, row, None, now)));
        failed
    }

    pub(super) fn read_key(&self, sink: &str, key: &KeyName, limit: u32) -> Vec<KeyEvent> {
        let (now, store) = (self.now(), self.store());
        let pending = |row: &&Stored| !store.done(row.seq, sink);
        let event = |row: &Stored| key_event(row, store.delivery(row.seq, sink), now);
        match key {
            KeyName::Named(key) => {
                let key: Arc<str> = Arc::from(key.as_str());
                let rows = store.run(&key, i64::MIN);
                rows.filter(pending)
                    .take(limit as usize)
                    .map(event)
                    .collect()
            }
            KeyName::Alone(seq) => {
                let row = store.rows.get(seq).into_iter();
                let row = row.filter(|row| row.ordering_key.is_none());
                row.filter(pending).map(event).collect()
            }
        }
    }

    pub(super) fn retry_now(&self, picks: &[Pick]) -> u64 {
        let mut count = 0;
        {
            let (now, mut store) = (self.now(), self.store());
            for pick in picks {
                let found = store.deliveries.get_mut(&(pick.seq, pick.sink.clone()));
                let Some(delivery) = found.filter(|found| found.mark == Mark::Retrying) else {
                    continue;
                };
                if delivery.next_at.is_some_and(|next| next > now) {
                    count += 1;
                    if delivery.next_at > Some(later(now, BLOCKED)) {
                        delivery.attempts = 0;
                    }
                    delivery.next_at = Some(now);
                }
            }
            store.commands.push(Told::Hurry(Pick::seqs(picks)));
        }
        self.notify();
        count
    }

    pub(super) fn mark_skipped(&self, picks: &[Pick], by: &Operator) -> u64 {
        let mut count = 0;
        {
            let (now, mut store) = (self.now(), self.store());
            let words = clean(&by.skips());
            for pick in picks {
                let at = (pick.seq, pick.sink.clone());
                if !store.rows.contains_key(&pick.seq) || store.done(pick.seq, &pick.sink) {
                    continue;
                }
                count += 1;
                let delivery = store.deliveries.entry(at).or_insert_with(|| Delivery {
                    mark: Mark::Retrying,
                    attempts: 0,
                    next_at: None,
                    last_error: None,
                    failed_at: None,
                    at: now,
                    skip: None,
                    route: Arc::from([]),
                    receipt: None,
                    owed: None,
                });
                delivery.skip = Some(words.clone());
            }
            store.commands.push(Told::Hurry(Pick::seqs(picks)));
        }
        self.notify();
        count
    }

    pub(super) fn look_ahead(&self, filter: &DiscardedFilter) -> Overtakes {
        let (now, store) = (self.now(), self.store());
        let newest_first = store.discarded.iter().rev();
        let picked = newest_first.filter(|dead| selected(filter, dead, now));
        let picked: Vec<_> = picked.take(Overtakes::LOOKED_AT as usize).collect();
        let mut firsts = std::collections::BTreeMap::new();
        let mut late = 0;
        for dead in &picked {
            let Some(key) = &dead.row.ordering_key else {
                continue;
            };
            let first = firsts.entry(key).or_insert(dead.row.seq);
            *first = dead.row.seq.min(*first);
            let passed = store.published.iter().any(|history| {
                history.kept.seq > dead.row.seq
                    && history.kept.sink == dead.shown.sink
                    && history.key.as_ref() == Some(key)
            });
            late += u64::from(passed);
        }
        let behind: Vec<u64> = firsts
            .iter()
            .map(|(key, first)| behind(&store, key, *first))
            .filter(|count| *count > 0)
            .collect();
        Overtakes {
            events: picked.len() as u64,
            pending_keys: behind.len() as u64,
            pending_events: behind.iter().sum(),
            late,
            late_bounded: false,
        }
    }
}

fn behind(store: &Store, key: &Arc<str>, seq: i64) -> u64 {
    let rows = store.run(key, seq.saturating_add(1));
    rows.take(MAX_BEHIND as usize).count() as u64
}

fn waiting(store: &Store, row: &Stored, sink: Option<&String>, now: Timestamp) -> Waiting {
    let delivery = sink.and_then(|sink| store.delivery(row.seq, sink));
    Waiting {
        sink: sink.cloned(),
        event: key_event(row, delivery, now),
        behind: row
            .ordering_key
            .as_ref()
            .map_or(0, |key| behind(store, key, row.seq)),
    }
}

fn key_event(row: &Stored, delivery: Option<&Delivery>, now: Timestamp) -> KeyEvent {
    KeyEvent {
        seq: row.seq,
        id: row.id,
        kind: row.kind.clone(),
        ordering_key: row.ordering_key.as_deref().map(str::to_owned),
        occurred_at: row.body.occurred_at,
        available_at: row.available_at,
        attempts: delivery.map_or(0, |delivery| i64::from(delivery.attempts)),
        next_at: delivery.and_then(|delivery| delivery.next_at),
        last_error: delivery.and_then(|delivery| delivery.last_error.clone()),
        failed_at: delivery.and_then(|delivery| delivery.failed_at),
        skip: delivery.and_then(|delivery| delivery.skip.clone()),
        now,
    }
}
