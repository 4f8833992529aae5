//! The sequencers of a feed: spawned when a key has work, retired when it has none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorId, ActorRef};
use tracing::error;

use super::feed::action::{Action, Origin, Work};
use super::{Message, Phase, State, Tag};
use crate::actor::restart::Role;
use crate::actor::sequencer::{self, SequencerActor};

/// The living sequencers of one feed.
#[derive(Default)]
pub struct Hands {
    by_key: HashMap<Option<Arc<str>>, ActorRef<sequencer::Message>>,
    by_id: HashMap<ActorId, Option<Arc<str>>>,
}

impl Hands {
    /// How many are alive.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// None is alive.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Ends a key's sequencer after what it was sent; a later event gets a new one.
    pub fn retire(&mut self, key: Option<&Arc<str>>) {
        if let Some(sequencer) = self.by_key.remove(&key.cloned()) {
            self.by_id.remove(&sequencer.get_id());
            let _ = sequencer.cast(sequencer::Message::Retire);
        }
    }

    /// Asks all to send nothing more.
    pub fn halt_all(&self) {
        for sequencer in self.by_key.values() {
            let _ = sequencer.cast(sequencer::Message::Halt);
        }
    }

    /// Ends all at once.
    pub fn stop_all(&mut self) {
        self.by_id.clear();
        for (_, sequencer) in self.by_key.drain() {
            sequencer.stop(None);
        }
    }

    fn add(&mut self, key: Option<Arc<str>>, sequencer: ActorRef<sequencer::Message>) {
        self.by_id.insert(sequencer.get_id(), key.clone());
        self.by_key.insert(key, sequencer);
    }

    /// A sequencer is gone; `Some` when it was one of these: its key.
    fn gone(&mut self, id: ActorId) -> Option<Option<Arc<str>>> {
        let key = self.by_id.remove(&id)?;
        self.by_key.remove(&key);
        Some(key)
    }
}

impl State {
    /// Time to look what is due.
    pub(super) fn tick(&mut self, _epoch: u64) {
        // Everything due is started after every message, this one included.
    }

    /// Starts what is due, gives work to sequencers, and sets the next tick.
    pub(super) async fn hand_out(&mut self) {
        let now = self.now();
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        active.drive(now);
        let actions = std::mem::take(&mut active.actions);
        for (index, action) in actions {
            match action {
                Action::Fetch(seqs) => {
                    let slot = &mut active.slots[index];
                    slot.fetches.push_back((seqs, Origin::Large));
                    active.fetch(index);
                }
                Action::Hand { key, work, floor } => {
                    let slot = &mut active.slots[index];
                    hand(slot, &self.myself, key, work, floor).await;
                }
            }
        }
        active.tell_caught_up();
        if let Some(at) = active.next_tick(now) {
            let (myself, epoch) = (self.myself.clone(), self.epoch);
            myself.send_after(Duration::from_millis(at.saturating_sub(now)), move || {
                Message::Tick(epoch)
            });
        }
        if let Some(next_due) = active.wants_quiet(now) {
            self.fall_quiet(next_due);
        }
    }

    /// A sequencer ended without being told to: its key is read again once what it reported is settled.
    pub(super) fn sequencer_ended(&mut self, cell: &ActorCell, reason: String) {
        let (epoch, now) = (self.epoch, self.now());
        let slots = match &mut self.phase {
            Phase::Active(active) => &mut active.slots,
            // In a drain its events stay unknown until the grace is over.
            _ => return,
        };
        let found = slots
            .iter_mut()
            .enumerate()
            .find_map(|(feed, slot)| slot.hands.gone(cell.get_id()).map(|key| (feed, key)));
        let Some((feed, key)) = found else { return };
        if let Some(key) = &key {
            slots[feed].feed.on_sequencer_lost(key, now);
        }
        let arguments = &self.arguments;
        error!(
            database = %arguments.database,
            key = key.as_deref().unwrap_or("(no key)"),
            %reason,
            "a sequencer ended unexpectedly; its key is read again"
        );
        arguments.telemetry.restart(Role::Sequencer.as_str());
        self.flush(Tag::Orphan(epoch, feed, key));
    }
}

/// Gives work to a key's sequencer, spawning it if need be.
async fn hand(
    slot: &mut super::active::Slot,
    claimer: &ActorRef<Message>,
    key: Option<Arc<str>>,
    work: Vec<Work>,
    floor: i64,
) {
    if let Some(sequencer) = slot.hands.by_key.get(&key) {
        // One that just ended is reported by its supervision event, and its key read again.
        let _ = sequencer.cast(sequencer::Message::Deliver(work));
        return;
    }
    let arguments = sequencer::Arguments {
        context: Arc::clone(&slot.context),
        key: key.clone(),
        floor,
    };
    match Actor::spawn_linked(None, SequencerActor, arguments, claimer.get_cell()).await {
        Ok((sequencer, _)) => {
            let _ = sequencer.cast(sequencer::Message::Deliver(work));
            slot.hands.add(key, sequencer);
        }
        Err(problem) => {
            error!(error = %problem, "a sequencer could not be started; its events go back");
            let seqs: Vec<i64> = work.iter().map(|work| work.event.seq).collect();
            let _ = claimer.cast(Message::Returned(
                slot.context.epoch,
                slot.context.feed,
                seqs,
            ));
        }
    }
}
