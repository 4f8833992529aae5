//! What was delivered, for `verify`, in memory.

use uuid::Uuid;

use super::Memory;
use crate::source::settlement::Mark;
use crate::source::trail::{Delivered, Hand, Known, Take, Tally, Window};

impl Memory {
    pub(super) fn walk_trail(&self, sink: &str, window: Window, take: Take<'_>) {
        let store = self.store();
        let history = store.published.iter().filter(|row| row.kept.sink == sink);
        let receipts = history.map(|row| Delivered {
            seq: row.kept.seq,
            id: row.kept.id,
            ordering_key: row.key.as_deref(),
            at: row.at,
            stream: row.kept.stream.as_deref(),
            position: row.kept.position.and_then(|at| u64::try_from(at).ok()),
            receipt: true,
        });
        let marks = store
            .deliveries
            .iter()
            .filter(|((_, name), delivery)| name == sink && delivery.mark == Mark::Published);
        let marks = marks.filter_map(|((seq, _), delivery)| {
            let row = store.rows.get(seq)?;
            let receipt = delivery.receipt.as_ref();
            Some(Delivered {
                seq: *seq,
                id: row.id,
                ordering_key: row.ordering_key.as_deref(),
                at: delivery.at,
                stream: receipt.and_then(|receipt| receipt.stream.as_deref()),
                position: receipt.and_then(|receipt| receipt.position),
                receipt: false,
            })
        });
        for delivered in receipts.chain(marks) {
            if window.contains(delivered.at) && take(delivered).is_break() {
                return;
            }
        }
    }

    pub(super) fn count_trail(&self, sink: &str, window: Window) -> Tally {
        let store = self.store();
        let dead = store.discarded.iter();
        let dead = dead.filter(|dead| dead.shown.sink == sink && window.contains(dead.at));
        let mut tally = Tally {
            pending: Vec::new(),
            discarded: dead.count() as u64,
            reaches_back: store.published.iter().any(|row| row.at < window.since),
        };
        for row in store.rows.values() {
            if window.contains(row.body.occurred_at) && !store.done(row.seq, sink) {
                tally.add(row.kind.clone(), 1);
            }
        }
        tally
    }

    pub(super) fn look_up(&self, events: &[(Option<i64>, Uuid)]) -> Vec<Option<Known>> {
        let store = self.store();
        let known = |(_, id): &(Option<i64>, Uuid)| {
            let pending = store.rows.values().any(|row| row.id == *id);
            let published = store.published.iter().any(|row| row.kept.id == *id);
            let discarded = store.discarded.iter().any(|dead| dead.shown.id == *id);
            Known::of(pending, published, discarded)
        };
        events.iter().map(known).collect()
    }

    pub(super) fn list_hands(&self, sink: &str, seqs: &[i64]) -> Vec<(i64, Hand)> {
        let store = self.store();
        let hands = store.hands.iter();
        let hands = hands.filter(|(name, seq, _)| name == sink && seqs.contains(seq));
        let mut hands: Vec<_> = hands.map(|(_, seq, hand)| (*seq, *hand)).collect();
        hands.sort_unstable();
        hands.dedup();
        hands
    }
}
