//! What an owner hears from its sequencers and from the settler.

use std::sync::Arc;

use super::active::{Active, Slot};
use super::feed::action::Park;
use crate::actor::settler::Settled;

/// Pause of an event whose outcome the database refuses, milliseconds.
const REFUSED: u64 = 5_000;
/// Pause of a key whose sequencer died, milliseconds.
const ORPHANED: u64 = 500;

impl Slot {
    /// Ends sequencers that were halted and have nothing out any more: the next events get others.
    fn retire_drained(&mut self) {
        for key in self.feed.take_drained() {
            self.hands.retire(Some(&key));
        }
    }
}

impl Active {
    /// Outcomes were committed.
    pub fn settled(&mut self, list: &[Settled], now: u64) {
        self.active_at(now);
        for settled in list {
            if let Some(slot) = self.slots.get_mut(settled.feed) {
                if settled.refused {
                    slot.feed.on_refused(settled.seq, REFUSED, now);
                } else {
                    let Settled { seq, done, new, .. } = *settled;
                    slot.feed.on_settled(seq, done, new, now);
                    if let Some(origin) = slot.feed.take_again(settled.seq) {
                        slot.fetches.push_back((vec![settled.seq], origin));
                    }
                }
                slot.retire_drained();
            }
        }
    }

    /// A sequencer's key cannot go on.
    pub fn park(&mut self, feed: usize, park: Park, now: u64) {
        self.active_at(now);
        if let Some(slot) = self.slots.get_mut(feed) {
            if let Some(key) = park.key.name() {
                slot.hands.retire(Some(key));
                slot.feed.unhalted(key);
            }
            slot.feed.on_park(park, now);
        }
    }

    /// Events came back unsent.
    pub fn returned(&mut self, feed: usize, seqs: &[i64], now: u64) {
        if let Some(slot) = self.slots.get_mut(feed) {
            slot.feed.on_returned(seqs, now);
            slot.retire_drained();
        }
    }

    /// A sequencer died, and everything it reported is settled.
    pub fn orphaned(&mut self, feed: usize, key: Option<&Arc<str>>, now: u64) {
        if let Some(slot) = self.slots.get_mut(feed) {
            slot.feed.on_orphaned(key, ORPHANED, now);
        }
    }
}
