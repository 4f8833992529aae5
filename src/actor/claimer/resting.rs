//! Whether an owner has anything to do, and whether the database may sleep.

use std::time::Duration;

use super::active::{Active, Slot};

/// A key that is due within this long keeps the database from falling quiet, milliseconds.
const SOON: u64 = 60_000;

impl Active {
    /// Another instance has something to do, or has not.
    pub fn others_are_busy(&mut self, busy: bool) {
        self.others_busy = busy;
    }

    /// The channel says that something was written: whoever it is for.
    pub fn woken(&mut self, now: u64) {
        if self.renewer().attendance().is_shared() {
            self.active_at(now);
        }
        self.wake();
    }

    /// Nothing happened for so long that the database may sleep; with the time until a key is due.
    pub fn wants_quiet(&self, now: u64) -> Option<Option<Duration>> {
        let quiet = u64::try_from(self.env.settings.quiet_after?.as_millis()).ok()?;
        let idle = now.saturating_sub(self.last_activity) >= quiet;
        let due = self.slots.iter().filter_map(Slot::next_due).min();
        let soon = due.is_some_and(|due| due < now + SOON);
        let idle = idle && !soon && self.pulse.is_listening() && self.caught_up_now();
        self.renewer().attendance().show_idle(idle);
        (idle && !self.others_busy).then(|| due.map(|due| Duration::from_millis(due - now)))
    }

    /// Everything due is delivered and settled, as far as anyone can know.
    pub fn caught_up_now(&self) -> bool {
        self.actions.is_empty()
            && self.cancelling.is_over()
            && self.slots.iter().all(|slot| match slot.feed.is_held() {
                // What is paused is not due.
                true => !slot.reading && !slot.catching && slot.feed.in_flight() == 0,
                false => {
                    slot.dry
                        && !slot.want_read
                        && !slot.reading
                        && !slot.catching
                        && slot.fetches.is_empty()
                        && slot.feed.at_rest()
                        && !slot.searches()
                        && slot.feed.cursor().gaps().is_empty()
                }
            })
    }
}
