//! Small seeded randomness: the same seed makes the same decisions.

use std::time::Duration;

/// A generator (splitmix64); each task of a run has one of its own.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut dice = Self(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        dice.roll();
        dice
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `below` − 1.
    pub fn below(&mut self, below: u64) -> u64 {
        self.roll() % below.max(1)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        let index = self.below(list.len() as u64) as usize;
        list.get(index)
    }

    /// Up to `most` milliseconds.
    pub fn ms(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most + 1))
    }
}
