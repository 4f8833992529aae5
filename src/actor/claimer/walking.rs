//! What an owner does beside reading forward: operators' commands, sweeps, and keys that memory had no room
//! for.

use std::sync::Arc;

use super::Message;
use super::active::Active;
use super::feed::action::Origin;
use super::keys::OrderKey;
use crate::actor::handle::guarded;
use crate::event::Timestamp;
use crate::source::{Command, Commands, Due, SourceError, Sweep};

/// Most heads of one slice of a sweep.
const SLICE: u32 = 500;
/// Most rows of one page of a walk over due times.
const PAGE: u32 = 5_000;
/// Shortest pause between looks at commands, milliseconds.
pub(super) const COMMANDS: u64 = 100;

/// A walk over the due times in the table, to find keys that had to be dropped from memory.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    /// The page begins here.
    from: Timestamp,
    limit: u32,
    /// Keys dropped when the walk began.
    dropped: u64,
}

impl Active {
    /// Starts a look at operators' commands.
    pub(super) fn command(&mut self, now: u64) {
        if self.commanding || !self.want_commands || now < self.commands_at + COMMANDS {
            return;
        }
        self.commanding = true;
        self.want_commands = false;
        self.commands_at = now;
        let mark = self.command_mark;
        let (source, myself, epoch) = self.task();
        self.tasks.spawn(async move {
            let result = guarded(source.commands(Some(mark))).await;
            let _ = myself.cast(Message::Commanded(epoch, result));
        });
    }

    /// Operators' commands arrived.
    pub(super) fn commanded(&mut self, result: Result<Commands, SourceError>, now: u64) {
        self.commanding = false;
        match result {
            Ok(commands) => {
                // There may be more than one answer holds.
                self.want_commands |= commands.mark > self.command_mark;
                self.obey(commands, now);
            }
            Err(error) => {
                self.want_commands = true;
                self.trouble(&error, now);
            }
        }
    }

    fn obey(&mut self, commands: Commands, now: u64) {
        self.command_mark = self.command_mark.max(commands.mark);
        if let Some(pauses) = commands.pauses {
            self.pause(pauses, commands.mark, now);
        }
        for command in commands.items {
            let origin = match command {
                Command::Look { .. } => Origin::Command,
                Command::Hurry { .. } => Origin::Hurry,
            };
            for slot in &mut self.slots {
                slot.fetches.push_back((command.seqs().to_vec(), origin));
            }
            self.active_at(now);
        }
    }

    /// Starts a sweep of every feed that has none under way.
    pub(super) fn begin_sweep(&mut self) {
        for index in 0..self.slots.len() {
            self.sweep(index);
        }
    }

    /// Starts a sweep of a feed, if it has none under way and is not paused.
    pub(super) fn sweep(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.sweep.is_none() && !slot.feed.is_held() {
            slot.sweep = Some(None);
            slot.sweep_forgettings = slot.feed.search_began();
            self.sweep_slice(index);
        }
    }

    /// Goes on with a sweep that waited for what it had found to be read.
    pub(super) fn sweep_on(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.sweep_rests && slot.feed.has_room_to_search() {
            slot.sweep_rests = false;
            self.sweep_slice(index);
        }
    }

    fn sweep_slice(&mut self, index: usize) {
        let Some(mark) = self.slots[index].sweep.clone() else {
            return;
        };
        let sink = Arc::clone(self.slots[index].feed.sink());
        // What is settled meanwhile is nothing that reading forward missed, even if it is put back soon after.
        let read = self.slots[index].feed.recent_mut().read_began();
        let commands = self.command_mark;
        let (source, myself, epoch) = self.task();
        self.tasks.spawn(async move {
            let result = async {
                let sweep = guarded(source.heads(&sink, mark.as_ref(), SLICE)).await?;
                // Commands after the heads: what an operator put back is then known as his.
                let commands = guarded(source.commands(Some(commands))).await?;
                Ok((sweep, commands))
            }
            .await;
            let _ = myself.cast(Message::Swept(epoch, index, read, result));
        });
    }

    /// A slice of a sweep arrived.
    pub(super) fn swept(
        &mut self,
        index: usize,
        result: Result<(Sweep, Commands), SourceError>,
        now: u64,
    ) {
        match result {
            Ok((mut sweep, commands)) => {
                let owned = &self.owned;
                sweep
                    .heads
                    .retain(|head| owned.includes(head.ordering_key.as_deref(), head.seq));
                let commanded: Vec<i64> = commands
                    .items
                    .iter()
                    .flat_map(|command| command.seqs().iter().copied())
                    .collect();
                self.obey(commands, now);
                let slot = &mut self.slots[index];
                if slot.feed.is_held() {
                    slot.sweep = None;
                    return;
                }
                slot.feed.on_rescheduled(&sweep.heads, now);
                let mut missed = slot.feed.unexplained(&sweep.heads);
                missed.retain(|seq| {
                    let waiting = slot.fetches.iter().any(|(seqs, _)| seqs.contains(seq));
                    !commanded.contains(seq) && !waiting
                });
                if !missed.is_empty() {
                    slot.fetches.push_back((missed, Origin::Sweep));
                }
                if slot.feed.has_forgotten() {
                    slot.feed.on_searched(&sweep.heads, now);
                }
                slot.sweep = sweep.next.map(Some);
                if slot.sweep.is_none() {
                    slot.feed.searched(slot.sweep_forgettings);
                    if slot.feed.wants_search() {
                        self.sweep(index);
                    }
                } else if slot.feed.has_room_to_search() {
                    self.sweep_slice(index);
                } else {
                    slot.sweep_rests = true;
                }
            }
            Err(error) => {
                self.slots[index].sweep = None;
                self.trouble(&error, now);
            }
        }
    }

    /// Walks over the due times in the table when keys had to be dropped from memory and there is room again.
    pub(super) fn walk(&mut self, index: usize) {
        let parked = self.slots[index].feed.parked();
        if self.slots[index].walk.is_none() && parked.wants_refill() {
            let walk = Walk {
                from: Timestamp(i64::MIN),
                limit: PAGE,
                dropped: parked.dropped(),
            };
            self.walk_page(index, walk);
        }
    }

    fn walk_page(&mut self, index: usize, walk: Walk) {
        let slot = &mut self.slots[index];
        slot.walk = Some(walk);
        let sink = Arc::clone(slot.feed.sink());
        let (source, myself, epoch) = self.task();
        self.tasks.spawn(async move {
            let result = guarded(source.due_after(&sink, walk.from, walk.limit)).await;
            let _ = myself.cast(Message::Walked(epoch, index, result));
        });
    }

    /// A page of due times arrived, earliest first.
    pub(super) fn walked(&mut self, index: usize, result: Result<Vec<Due>, SourceError>, now: u64) {
        let slot = &mut self.slots[index];
        let Some(walk) = slot.walk.take() else { return };
        let list = match result {
            Ok(list) => list,
            Err(error) => return self.trouble(&error, now),
        };
        let last = list.last().map(|due| due.due);
        let complete = list.len() < walk.limit as usize;
        for due in list {
            if !slot.feed.parked().has_room() {
                // Full again, of earlier ones: the next walk begins when half of them have gone.
                return;
            }
            if !self.owned.includes(due.ordering_key.as_deref(), due.seq) {
                continue;
            }
            let key = OrderKey::of(due.ordering_key.as_ref(), due.seq);
            let pause = u64::try_from(due.due_in.as_millis()).unwrap_or(u64::MAX);
            slot.feed.on_due_row(&key, due.seq, pause, now);
        }
        match last {
            Some(last) if !complete => {
                // A page of one moment only: a longer one gets past it.
                let limit = if last == walk.from {
                    walk.limit.saturating_mul(2)
                } else {
                    PAGE
                };
                self.walk_page(
                    index,
                    Walk {
                        from: last,
                        limit,
                        ..walk
                    },
                );
            }
            _ => slot.feed.parked_mut().walked(walk.dropped),
        }
    }
}
