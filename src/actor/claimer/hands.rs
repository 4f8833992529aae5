//! The sequencers of a feed: spawned when a key has work, laid to rest when it has none, and taken for the next key.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorId, ActorRef};
use tracing::error;

use super::feed::action::{Action, Origin, Work};
use super::{Message, Phase, State, Tag};
use crate::actor::restart::Role;
use crate::actor::sequencer::{self, SequencerActor};

/// Most sequencers kept without a key. To spawn one and end it again costs about as much as all the rest that is
/// done for an event, and the memory of this many is about 16 MiB.
const RESTING: usize = 2_048;

/// The living sequencers of one feed.
#[derive(Default)]
pub struct Hands {
    by_key: HashMap<Option<Arc<str>>, ActorRef<sequencer::Message>>,
    by_id: HashMap<ActorId, Duty>,
    resting: Vec<ActorRef<sequencer::Message>>,
    /// The fewest that rested at any time since [`Hands::thin_out`].
    unneeded: usize,
}

/// What a sequencer is there for.
enum Duty {
    /// This key, or the events without one.
    Key(Option<Arc<str>>),
    /// Whichever key has work next.
    Rest,
}

impl Hands {
    /// How many are alive.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// None is alive.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// A key has no work, and nothing of it is out: its sequencer may serve another one.
    pub fn rest(&mut self, key: &Arc<str>) {
        if self.resting.len() >= RESTING {
            return self.retire(Some(key));
        }
        if let Some(sequencer) = self.by_key.remove(&Some(Arc::clone(key))) {
            self.by_id.insert(sequencer.get_id(), Duty::Rest);
            self.resting.push(sequencer);
        }
    }

    /// Ends half of those that were not needed since the last time.
    pub fn thin_out(&mut self) {
        for _ in 0..self.unneeded.div_ceil(2) {
            if let Some(sequencer) = self.resting.pop() {
                self.by_id.remove(&sequencer.get_id());
                let _ = sequencer.cast(sequencer::Message::Retire);
            }
        }
        self.unneeded = self.resting.len();
    }

    /// One that rests, for a key with work.
    fn take(&mut self) -> Option<ActorRef<sequencer::Message>> {
        let sequencer = self.resting.pop()?;
        self.unneeded = self.unneeded.min(self.resting.len());
        Some(sequencer)
    }

    /// Ends a key's sequencer after what it was sent; a later event gets a new one.
    pub fn retire(&mut self, key: Option<&Arc<str>>) {
        if let Some(sequencer) = self.by_key.remove(&key.cloned()) {
            self.by_id.remove(&sequencer.get_id());
            let _ = sequencer.cast(sequencer::Message::Retire);
        }
    }

    /// Asks a key's to send nothing more and to give back what is not out.
    pub fn halt(&self, key: &Arc<str>) {
        if let Some(sequencer) = self.by_key.get(&Some(Arc::clone(key))) {
            let _ = sequencer.cast(sequencer::Message::Halt);
        }
    }

    /// Asks for the events without a key that are not out.
    pub fn recall_alone(&self) {
        if let Some(sequencer) = self.by_key.get(&None) {
            let _ = sequencer.cast(sequencer::Message::Recall);
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
        let busy = self.by_key.drain().map(|(_, sequencer)| sequencer);
        for sequencer in busy.chain(self.resting.drain(..)) {
            sequencer.stop(None);
        }
    }

    fn add(&mut self, key: Option<Arc<str>>, sequencer: ActorRef<sequencer::Message>) {
        self.by_id
            .insert(sequencer.get_id(), Duty::Key(key.clone()));
        self.by_key.insert(key, sequencer);
    }

    /// A sequencer is gone; `Some` when it was one of these: its key.
    fn gone(&mut self, id: ActorId) -> Option<Option<Arc<str>>> {
        match self.by_id.remove(&id)? {
            Duty::Key(key) => {
                self.by_key.remove(&key);
                Some(key)
            }
            Duty::Rest => {
                self.resting.retain(|sequencer| sequencer.get_id() != id);
                None
            }
        }
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
        if active.is_noting() {
            return;
        }
        active.drive(now);
        let actions = std::mem::take(&mut active.actions);
        let actions = self.note(actions);
        self.perform(actions).await;
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if active.is_noting() {
            return;
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

    /// Gives work to sequencers.
    pub(super) async fn perform(&mut self, actions: Vec<(usize, Action)>) {
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
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
    if let Some(key) = &key
        && let Some(sequencer) = slot.hands.take()
    {
        // One that just ended is reported by its supervision event here too: by then this is its key.
        let _ = sequencer.cast(sequencer::Message::Adopt {
            key: Arc::clone(key),
            floor,
            work,
        });
        slot.hands.add(Some(Arc::clone(key)), sequencer);
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
