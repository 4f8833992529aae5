//! [`Source`] in memory.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::store::{Told, Want, later, until};
use super::{Commits, Memory};
use crate::event::Timestamp;
use crate::lease::Lease;
use crate::source::settlement::{Facts, Known, Settlement};
use crate::source::{
    Backlog, Begun, BegunEvent, Command, Commands, Due, Head, Heartbeat, InHand, LeaseView,
    Listener, Members, Opened, Outcome, ReadBounds, Renewed, Retention, Row, Source, SourceError,
    Suspects, Sweep, SweepMark, Verdict, Writers,
};

#[async_trait]
impl Source for Memory {
    fn name(&self) -> &str {
        &self.0.name
    }

    async fn open(&self) -> Result<Opened, SourceError> {
        let store = self.store();
        Ok(Opened {
            shards: store.leases.len() as u16,
            incarnation: store.incarnation.to_string(),
            remarks: Vec::new(),
        })
    }

    async fn read(
        &self,
        sink: &str,
        after: i64,
        bounds: ReadBounds,
        bare_keys: &[Arc<str>],
    ) -> Result<Vec<Row>, SourceError> {
        let (now, store) = (self.now(), self.store());
        let Some(first) = after.checked_add(1) else {
            return Ok(Vec::new());
        };
        let rows = store.rows.range(first..).take(bounds.rows as usize);
        let view = |row| match bare(row, bare_keys) {
            true => store.view(row, sink, now, Want::Never),
            false => store.view(row, sink, now, Want::IfUsed),
        };
        let mut room = bounds.bodies;
        let rows = rows.map(|(_, row)| view(row)).take_while(|row| {
            let fits = room > 0;
            room -= u32::from(fits && row.body.is_some());
            fits
        });
        Ok(rows.collect())
    }

    async fn read_keys(
        &self,
        sink: &str,
        keys: &[(Arc<str>, i64)],
        per_key: u32,
    ) -> Result<Vec<Row>, SourceError> {
        let (now, store) = (self.now(), self.store());
        let mut found = Vec::new();
        for (key, from) in keys {
            let rows = store.run(key, *from);
            let pending = rows.filter(|row| !store.done(row.seq, sink));
            let run = pending.take(per_key as usize);
            found.extend(run.map(|row| store.view(row, sink, now, Want::IfUsed)));
        }
        Ok(found)
    }

    async fn read_seqs(&self, sink: &str, seqs: &[i64]) -> Result<Vec<Row>, SourceError> {
        let (now, store) = (self.now(), self.store());
        let wanted: BTreeSet<i64> = seqs.iter().copied().collect();
        let rows = wanted.iter().filter_map(|seq| store.rows.get(seq));
        let pending = rows.filter(|row| !store.done(row.seq, sink));
        Ok(pending
            .map(|row| store.view(row, sink, now, Want::Always))
            .collect())
    }

    async fn probe(
        &self,
        ranges: &[RangeInclusive<i64>],
        limit: u32,
    ) -> Result<Vec<(i64, Option<Arc<str>>)>, SourceError> {
        let store = self.store();
        let within = ranges.iter().filter(|range| !range.is_empty());
        let seqs: BTreeSet<i64> = within
            .flat_map(|range| store.rows.range(range.clone()).map(|(seq, _)| *seq))
            .collect();
        let found = seqs.into_iter().take(limit as usize);
        Ok(found
            .map(|seq| (seq, store.rows[&seq].ordering_key.clone()))
            .collect())
    }

    async fn writers(&self) -> Result<Option<Writers>, SourceError> {
        let store = self.store();
        Ok(Some(Writers {
            running: store.open.keys().map(|id| format!("tx:{id}")).collect(),
            prepared: Vec::new(),
        }))
    }

    async fn heads(
        &self,
        sink: &str,
        mark: Option<&SweepMark>,
        limit: u32,
    ) -> Result<Sweep, SourceError> {
        let (now, store) = (self.now(), self.store());
        let mut heads: Vec<Head> = Vec::new();
        let mut seen = BTreeSet::new();
        for row in store.rows.values() {
            let fresh = row
                .ordering_key
                .as_ref()
                .is_none_or(|key| !seen.contains(key));
            if fresh && !store.done(row.seq, sink) {
                seen.extend(row.ordering_key.clone());
                heads.push(Head {
                    seq: row.seq,
                    ordering_key: row.ordering_key.clone(),
                    kind: row.kind.clone(),
                    due: store.due(row, sink) <= now,
                });
            }
        }
        // Keys in their order, then keyless rows by seq: any place in that list is a mark.
        let place = |key: &Option<Arc<str>>, seq: i64| match key {
            Some(key) => (0, Some(key.clone()), 0),
            None => (1, None, seq),
        };
        heads.sort_by_key(|head| place(&head.ordering_key, head.seq));
        if let Some(mark) = mark {
            let mark = place(&mark.key, mark.seq);
            heads.retain(|head| place(&head.ordering_key, head.seq) > mark);
        }
        let more = heads.len() > limit as usize;
        heads.truncate(limit as usize);
        let last = heads.last().filter(|_| more);
        let next = last.map(|head| SweepMark {
            key: head.ordering_key.clone(),
            seq: head.seq,
        });
        Ok(Sweep { heads, next })
    }

    async fn due_after(
        &self,
        sink: &str,
        due: Timestamp,
        limit: u32,
    ) -> Result<Vec<Due>, SourceError> {
        let (now, store) = (self.now(), self.store());
        let rows = store.rows.values();
        let delayed = rows.filter(|row| {
            let backs_off = store.delivery(row.seq, sink).is_some();
            backs_off || row.available_at > row.body.occurred_at
        });
        let mut found: Vec<Due> = delayed
            .filter(|row| !store.done(row.seq, sink) && store.due(row, sink) >= due)
            .map(|row| Due {
                seq: row.seq,
                ordering_key: row.ordering_key.clone(),
                due_in: until(store.due(row, sink), now),
                due: store.due(row, sink),
            })
            .collect();
        found.sort_by_key(|due| (due.due, due.seq));
        found.truncate(limit as usize);
        Ok(found)
    }

    async fn settle(&self, outcomes: &[Outcome], _durable: bool) -> Result<Vec<bool>, SourceError> {
        let (now, mut store) = (self.now(), self.store());
        let mut facts = Facts::default();
        for (shard, held) in store.leases.iter().enumerate() {
            if held.owner.is_some() {
                facts.tokens.insert(shard as u16, held.token);
            }
        }
        for outcome in outcomes {
            if let Some(row) = store.rows.get(&outcome.seq) {
                facts.rows.insert(row.seq, row.id);
            }
            let from = (outcome.seq, String::new());
            let marks = store.deliveries.range(from..);
            let marks = marks.take_while(|((seq, _), _)| *seq == outcome.seq);
            let marks = marks.map(|((_, sink), delivery)| Known {
                sink: sink.clone(),
                mark: delivery.mark,
                owed: delivery.owed.clone(),
            });
            facts.marks.insert(outcome.seq, marks.collect());
        }
        let settlement = Settlement::decide(outcomes, facts);
        for outcome in settlement.history {
            if let Verdict::Published { receipt, .. } = &outcome.verdict {
                store.keep_history(outcome.seq, &outcome.sink, receipt, now);
            }
        }
        for outcome in settlement.discards {
            store.set_aside(outcome, now);
        }
        for marked in &settlement.marks {
            store.remember(marked, now);
        }
        for seq in settlement.deletions {
            store.delete(seq);
        }
        Ok(settlement.flags)
    }

    async fn delete_done(&self, required: &[Arc<str>], limit: u32) -> Result<u64, SourceError> {
        let (now, mut store) = (self.now(), self.store());
        let Some(first) = required.first() else {
            return Ok(0);
        };
        let finished = |seq: i64| {
            let delivery = store.delivery(seq, first);
            let route = delivery.map(|delivery| delivery.route.clone());
            let mut sinks = required
                .iter()
                .chain(route.iter().flat_map(|route| route.iter()));
            sinks.all(|sink| store.done(seq, sink))
        };
        let seqs: Vec<i64> = store
            .rows
            .keys()
            .copied()
            .filter(|seq| finished(*seq))
            .collect();
        let seqs: Vec<i64> = seqs.into_iter().take(limit as usize).collect();
        for seq in &seqs {
            let owed: Vec<_> = store
                .deliveries
                .iter()
                .filter(|((at, _), _)| at == seq)
                .filter_map(|((_, sink), delivery)| Some((sink.clone(), delivery.owed.clone()?)))
                .collect();
            for (sink, (_, receipt)) in owed {
                store.keep_history(*seq, &sink, &receipt, now);
            }
            store.delete(*seq);
        }
        Ok(seqs.len() as u64)
    }

    async fn begun(&self, after: i64, limit: u32) -> Result<Begun, SourceError> {
        let store = self.store();
        let marked: BTreeSet<i64> = store.deliveries.keys().map(|(seq, _)| *seq).collect();
        let seqs: Vec<i64> = marked
            .into_iter()
            .filter(|seq| *seq > after)
            .take(limit as usize)
            .collect();
        let full = seqs.len() == limit as usize;
        let next = seqs.last().copied().filter(|_| full);
        let events = seqs
            .iter()
            .filter_map(|seq| store.rows.get(seq))
            .filter_map(|row| {
                let open = store.open_shares(row.seq);
                (!open.is_empty()).then(|| BegunEvent {
                    seq: row.seq,
                    id: row.id,
                    kind: row.kind.clone(),
                    ordering_key: row.ordering_key.clone(),
                    open,
                })
            });
        Ok(Begun {
            events: events.collect(),
            next,
        })
    }

    async fn commands(&self, after: Option<i64>) -> Result<Commands, SourceError> {
        let store = self.store();
        let mark = store.commands.len() as i64;
        let mut commands = Commands {
            mark,
            items: Vec::new(),
            pauses: None,
        };
        let mut paused = after.is_none();
        let after = usize::try_from(after.unwrap_or(mark)).unwrap_or(0);
        for told in store.commands.iter().skip(after) {
            match told {
                Told::Look(seqs) => commands.items.push(Command::Look { seqs: seqs.clone() }),
                Told::Hurry(seqs) => commands.items.push(Command::Hurry { seqs: seqs.clone() }),
                Told::PausesChanged => paused = true,
            }
        }
        commands.pauses = paused.then(|| store.pauses.values().cloned().collect());
        Ok(commands)
    }

    async fn attend(&self, instance: Uuid, ttl: Duration, idle: bool) -> Result<(), SourceError> {
        let now = self.now();
        self.store().attend(instance, later(now, ttl), idle, now);
        Ok(())
    }

    async fn members(&self, instance: Uuid) -> Result<Members, SourceError> {
        Ok(self.store().members_beside(instance, self.now()))
    }

    async fn acquire(
        &self,
        instance: Uuid,
        ttl: Duration,
        most: u16,
    ) -> Result<Vec<Lease>, SourceError> {
        Ok(self.store().acquire(instance, ttl, most, self.now()))
    }

    async fn renew(&self, leases: &[Lease], ttl: Duration) -> Result<Renewed, SourceError> {
        let mut store = self.store();
        Ok(Renewed {
            held: store.renew(leases, later(self.now(), ttl)),
            incarnation: store.incarnation.to_string(),
            last_seq: store.last_seq,
        })
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), SourceError> {
        self.store().release(leases, self.now());
        Ok(())
    }

    async fn bury(&self, instance: Uuid) -> Result<(), SourceError> {
        self.store().bury(instance, self.now());
        Ok(())
    }

    async fn suspects(&self, leases: &[Lease]) -> Result<Vec<Suspects>, SourceError> {
        Ok(self.store().suspects(leases))
    }

    async fn note(&self, in_hand: &[InHand], alone: bool) -> Result<(), SourceError> {
        self.store().note(in_hand, alone);
        Ok(())
    }

    async fn acquit(&self, leases: &[Lease]) -> Result<(), SourceError> {
        self.store().acquit(leases);
        Ok(())
    }

    async fn leases(&self) -> Result<Vec<LeaseView>, SourceError> {
        Ok(self.store().lease_views(self.now()))
    }

    async fn heartbeat(&self, beat: &Heartbeat) -> Result<(), SourceError> {
        let now = self.now();
        self.store()
            .instances
            .insert(beat.instance, (beat.clone(), now));
        Ok(())
    }

    async fn goodbye(&self, instance: Uuid) -> Result<(), SourceError> {
        let mut store = self.store();
        store.instances.remove(&instance);
        store.members.remove(&instance);
        Ok(())
    }

    async fn backlog(&self) -> Result<Backlog, SourceError> {
        let (now, store) = (self.now(), self.store());
        let mut backing_off: HashMap<i64, Timestamp> = HashMap::new();
        for ((seq, _), delivery) in &store.deliveries {
            if let Some(next) = delivery.next_at {
                let latest = backing_off.entry(*seq).or_insert(next);
                *latest = next.max(*latest);
            }
        }
        let due = store.rows.values().map(|row| {
            let next = backing_off.get(&row.seq).copied();
            next.map_or(row.available_at, |next| next.max(row.available_at))
        });
        let oldest = due.filter(|due| *due <= now).min();
        Ok(Backlog {
            events: store.rows.len() as u64,
            bounded: false,
            oldest_ready_age_s: oldest.map(|due| (now.0 - due.0) as f64 / 1e6),
        })
    }

    async fn purge(&self, retention: &Retention, limit: u32) -> Result<u64, SourceError> {
        let (now, mut store) = (self.now(), self.store());
        let old = |at: Timestamp, keep: Duration| later(at, keep) <= now;
        let rows = store.published.iter().take(limit as usize);
        let published = rows
            .take_while(|kept| old(kept.at, retention.published))
            .count();
        store.published.drain(..published);
        let rows = store.discarded.iter().take(limit as usize);
        let discarded = rows
            .take_while(|dead| old(dead.at, retention.discarded))
            .count();
        store.discarded.drain(..discarded);
        Ok((published + discarded) as u64)
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listener>>, SourceError> {
        let commits = self.0.commits.subscribe();
        Ok(Some(Box::new(Commits { commits })))
    }

    async fn set_wake_mark(&self, _span: Duration) -> Result<(), SourceError> {
        Ok(())
    }

    async fn wake_instances(&self) -> Result<(), SourceError> {
        self.notify();
        Ok(())
    }

    async fn close(&self) {}
}

fn bare(row: &super::store::Stored, bare_keys: &[Arc<str>]) -> bool {
    row.ordering_key
        .as_ref()
        .is_some_and(|key| bare_keys.contains(key))
}
