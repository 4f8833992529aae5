//! What an owner does about pauses: shows them, holds its feeds, and has what is not out come back.

use tracing::info;

use super::active::Active;
use super::holds::Holds;
use crate::source::{Pause, Target};

/// Most pauses shown one by one.
const SHOWN: usize = 50;

impl Active {
    /// Takes in everything that is paused, as read with the commands up to `mark`.
    pub(super) fn pause(&mut self, pauses: Vec<Pause>, mark: i64, now: u64) {
        // An answer that was read earlier and comes later is old.
        if mark < self.pauses_mark {
            return;
        }
        self.pauses_mark = mark;
        self.tell_changes(&pauses);
        self.show_pauses(&pauses);
        for slot in &mut self.slots {
            let holds = Holds::of(&pauses, slot.feed.sink());
            let recall = slot.feed.hold(holds, now);
            for key in &recall.keys {
                slot.hands.halt(key);
            }
            if recall.alone {
                slot.hands.recall_alone();
            }
            slot.want_read = true;
        }
        self.pauses = pauses;
        for index in 0..self.slots.len() {
            if self.slots[index].feed.wants_search() {
                self.sweep(index);
            }
        }
        self.active_at(now);
    }

    fn tell_changes(&self, pauses: &[Pause]) {
        let database = &self.env.database;
        for pause in pauses.iter().filter(|pause| !self.pauses.contains(pause)) {
            info!(%database, "{pause}");
        }
        let ended = |before: &&Pause| !pauses.iter().any(|pause| pause.target == before.target);
        for before in self.pauses.iter().filter(ended) {
            info!(%database, "{} goes on", before.target);
        }
    }

    fn show_pauses(&self, pauses: &[Pause]) {
        let keys = |pause: &&Pause| matches!(pause.target, Target::Key { .. });
        let mut shown: Vec<String> = pauses
            .iter()
            .filter(|pause| !keys(pause))
            .take(SHOWN)
            .map(Pause::to_string)
            .collect();
        let count = pauses.iter().filter(keys).count();
        if count > 0 {
            shown.push(format!("{count} keys are paused"));
        }
        let database = &self.env.database;
        self.env
            .board
            .database(database, |board| board.paused = shown);
    }
}
