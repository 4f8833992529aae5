//! Writing little by little: trickles and slices.

use std::time::Duration;

use tokio::time::Instant;

use super::Mode;

/// How much is written when, where the mode says so.
pub(super) struct Pace {
    free_at: Instant,
    /// The state of a small generator of numbers, which begins the same each time.
    number: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            free_at: Instant::now(),
            number: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Pace {
    /// Pieces of a trickle for each second.
    const PIECES: u32 = 100;

    /// When the next bytes of what is due then may go, and how many.
    pub(super) fn next(&self, mode: Mode, due: Instant) -> (Instant, usize) {
        match mode {
            Mode::Trickle(rate) => (due.max(self.free_at), (rate / Self::PIECES).max(1) as usize),
            Mode::Slice(most) => (
                due.max(self.free_at),
                1 + (self.number >> 33) as usize % most.max(1),
            ),
            _ => (due, usize::MAX),
        }
    }

    /// So many have gone.
    pub(super) fn wrote(&mut self, mode: Mode, bytes: usize) {
        let now = Instant::now();
        match mode {
            Mode::Trickle(rate) => {
                let takes = Duration::from_secs_f64(bytes as f64 / f64::from(rate.max(1)));
                self.free_at = self.free_at.max(now) + takes;
            }
            Mode::Slice(_) => {
                self.number ^= self.number << 13;
                self.number ^= self.number >> 7;
                self.number ^= self.number << 17;
                // A pause after each slice would take too long: one in eight has it.
                let pause = u64::from(self.number.is_multiple_of(8));
                self.free_at = now + Duration::from_millis(pause);
            }
            _ => {}
        }
    }
}
