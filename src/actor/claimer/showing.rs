//! What an owner shows of itself while nothing is wrong: what is on its way, what waits, and that nothing is due.

use super::Arguments;
use super::active::{Active, Slot};

impl Active {
    /// Shows for each feed what is on its way and what waits.
    pub(super) fn show_figures(&self) {
        let Arguments {
            board, database, ..
        } = &self.env;
        for Slot { feed, .. } in &self.slots {
            let (in_flight, parked) = (feed.in_flight(), feed.parked().count() + feed.held_back());
            board.feed(database, feed.sink(), |shown| {
                (shown.in_flight, shown.parked) = (in_flight as u64, parked as u64);
            });
        }
    }

    /// Tells whoever waits for it whether everything due is delivered.
    pub fn tell_caught_up(&self) {
        let caught_up = self.caught_up_now();
        if caught_up && !*self.env.caught_up.borrow() {
            // Whoever waits for it asks for them next.
            self.show_figures();
        }
        self.env
            .caught_up
            .send_if_modified(|value| std::mem::replace(value, caught_up) != caught_up);
    }
}
