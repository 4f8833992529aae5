//! Numbers missing in the sequence: late commits that may still come, or rollbacks that never will.
//!
//! A gap is looked into at each check. It closes when every transaction that could still fill it has
//! ended and one later look found nothing:
//!
//! ```text
//! new ──writers seen──> watched ──all of them ended──> ended ──a look finds nothing──> closed
//! ```
//!
//! A transaction takes its lock on the table before it takes a number, and keeps it until it ends. So
//! whoever took a number before the gap was seen is among the writers seen afterwards, or has ended.
//! A session that prepares its transaction changes its name: when the last running writer of a watch is gone, the
//! prepared ones of that moment are added once, and the watch ends with them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::source::Writers;

/// The open gaps of one feed, as disjoint ranges, bounded in number.
#[derive(Debug, Default)]
pub struct Gaps {
    ranges: BTreeMap<i64, Gap>,
    watches: BTreeMap<u64, Watch>,
    next_watch: u64,
    max: usize,
    /// Ranges merged so far because there were too many.
    merged: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    hi: i64,
    state: State,
    /// When it was seen, milliseconds.
    since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Watched(u64),
    Ended,
}

/// The transactions that some gaps wait for.
#[derive(Debug, Default)]
pub struct Watch {
    running: BTreeSet<String>,
    prepared: BTreeSet<String>,
    absorbed: bool,
}

impl Watch {
    /// Starts with the writers seen now.
    pub fn new(writers: &Writers) -> Self {
        let mut watch = Self {
            running: writers.running.iter().cloned().collect(),
            prepared: writers.prepared.iter().cloned().collect(),
            absorbed: false,
        };
        watch.observe(writers);
        watch
    }

    /// Forgets those that have ended; true when none is left.
    pub fn observe(&mut self, writers: &Writers) -> bool {
        let running: BTreeSet<&String> = writers.running.iter().collect();
        self.running.retain(|name| running.contains(name));
        if self.running.is_empty() && !self.absorbed {
            self.absorbed = true;
            self.prepared.extend(writers.prepared.iter().cloned());
        }
        let prepared: BTreeSet<&String> = writers.prepared.iter().collect();
        self.prepared.retain(|name| prepared.contains(name));
        self.ended()
    }

    fn ended(&self) -> bool {
        self.absorbed && self.running.is_empty() && self.prepared.is_empty()
    }
}

impl Gaps {
    /// No gaps; at most `max` ranges are told apart, more are merged with their nearest neighbour.
    pub fn new(max: usize) -> Self {
        Self {
            max: max.max(1),
            ..Self::default()
        }
    }

    /// Records that `lo..=hi` was not visible at `now` (milliseconds). Parts already known keep their state.
    pub fn open(&mut self, lo: i64, hi: i64, now: u64) {
        let mut at = lo;
        while at <= hi {
            if let Some((_, known)) = self.ranges.range(..=at).next_back()
                && known.hi >= at
            {
                if known.hi == i64::MAX {
                    break;
                }
                at = known.hi + 1;
                continue;
            }
            let end = match self.ranges.range(at..=hi).next() {
                Some((next, _)) => next - 1,
                None => hi,
            };
            self.insert(at, end, State::New, now);
            if end == i64::MAX {
                break;
            }
            at = end + 1;
        }
        self.bound();
    }

    fn insert(&mut self, lo: i64, hi: i64, state: State, since: u64) {
        if lo <= hi {
            self.ranges.insert(lo, Gap { hi, state, since });
        }
    }

    /// Merges nearest neighbours until the number of ranges is within the bound.
    fn bound(&mut self) {
        while self.ranges.len() > self.max {
            let keys: Vec<(i64, i64)> = self.ranges.iter().map(|(lo, gap)| (*lo, gap.hi)).collect();
            let nearest = keys
                .windows(2)
                .min_by_key(|pair| i128::from(pair[1].0) - i128::from(pair[0].1))
                .map(|pair| (pair[0].0, pair[1].0));
            let Some((left, right)) = nearest else { return };
            let (Some(a), Some(b)) = (self.ranges.remove(&left), self.ranges.remove(&right)) else {
                return;
            };
            // The merged range waits anew, for everyone who writes now: that covers both halves.
            self.insert(left, b.hi, State::New, a.since.min(b.since));
            self.merged += 1;
        }
    }

    /// No open gap.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Ranges that had to be merged so far.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// The lowest missing number.
    pub fn first(&self) -> Option<i64> {
        self.ranges.keys().next().copied()
    }

    /// Is `seq` inside an open gap?
    pub fn contains(&self, seq: i64) -> bool {
        self.ranges
            .range(..=seq)
            .next_back()
            .is_some_and(|(_, gap)| gap.hi >= seq)
    }

    /// When the youngest gap was seen, milliseconds: young gaps are looked into more often.
    pub fn youngest(&self) -> Option<u64> {
        self.ranges.values().map(|gap| gap.since).max()
    }

    /// Takes in who was writing after `asked` (all of [`Gaps::ranges`]) was noted down, and before the look whose
    /// result goes to [`Gaps::looked`]. A gap seen later than that has to be watched by a later call.
    pub fn observe(&mut self, asked: &[RangeInclusive<i64>], writers: &Writers) {
        self.watches.retain(|_, watch| !watch.observe(writers));
        let watches = &self.watches;
        let mut fresh = false;
        for (lo, gap) in &mut self.ranges {
            match gap.state {
                State::Watched(id) if !watches.contains_key(&id) => gap.state = State::Ended,
                State::New if within(asked, *lo, gap.hi) => {
                    gap.state = State::Watched(self.next_watch);
                    fresh = true;
                }
                State::New | State::Watched(_) | State::Ended => {}
            }
        }
        if fresh {
            let watch = Watch::new(writers);
            if watch.ended() {
                for gap in self.ranges.values_mut() {
                    if gap.state == State::Watched(self.next_watch) {
                        gap.state = State::Ended;
                    }
                }
            } else {
                self.watches.insert(self.next_watch, watch);
            }
            self.next_watch += 1;
        }
    }

    /// Where to look.
    pub fn ranges(&self) -> Vec<RangeInclusive<i64>> {
        self.ranges.iter().map(|(lo, gap)| *lo..=gap.hi).collect()
    }

    /// Takes in a look over `asked` (all of [`Gaps::ranges`] at that time) that began after the last [`Gaps::observe`] and
    /// saw these rows. `complete` is false when the look stopped at its limit: then nothing
    /// closes. Returns the closed ranges, ascending.
    pub fn looked(
        &mut self,
        asked: &[RangeInclusive<i64>],
        seen: &[i64],
        complete: bool,
    ) -> Vec<RangeInclusive<i64>> {
        for seq in seen {
            self.fill(*seq);
        }
        let mut closed = Vec::new();
        if complete {
            self.ranges.retain(|lo, gap| {
                let keep = gap.state != State::Ended || !within(asked, *lo, gap.hi);
                if !keep {
                    closed.push(*lo..=gap.hi);
                }
                keep
            });
        }
        closed
    }

    /// Takes a number that turned up out of its gap. False: it was in none.
    pub fn fill(&mut self, seq: i64) -> bool {
        let Some((lo, gap)) = self
            .ranges
            .range(..=seq)
            .next_back()
            .map(|(lo, gap)| (*lo, *gap))
        else {
            return false;
        };
        if gap.hi < seq {
            return false;
        }
        self.ranges.remove(&lo);
        if lo < seq {
            self.insert(lo, seq - 1, gap.state, gap.since);
        }
        if seq < gap.hi {
            self.insert(seq + 1, gap.hi, gap.state, gap.since);
        }
        true
    }
}

/// Is `lo..=hi` part of one of these ascending, disjoint ranges?
fn within(ranges: &[RangeInclusive<i64>], lo: i64, hi: i64) -> bool {
    let index = ranges.partition_point(|range| *range.end() < lo);
    ranges
        .get(index)
        .is_some_and(|range| *range.start() <= lo && hi <= *range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writers(running: &[&str], prepared: &[&str]) -> Writers {
        Writers {
            running: running.iter().map(|n| (*n).into()).collect(),
            prepared: prepared.iter().map(|n| (*n).into()).collect(),
        }
    }

    fn see(gaps: &mut Gaps, writers: &Writers) {
        let asked = gaps.ranges();
        gaps.observe(&asked, writers);
    }

    fn look(gaps: &mut Gaps, seen: &[i64]) -> Vec<RangeInclusive<i64>> {
        let asked = gaps.ranges();
        gaps.looked(&asked, seen, true)
    }

    #[test]
    fn a_gap_stays_until_its_writer_ended_and_a_later_look_found_nothing() {
        let mut gaps = Gaps::new(10);
        gaps.open(5, 5, 0);
        assert!(
            look(&mut gaps, &[]).is_empty(),
            "nobody was asked about writers yet"
        );
        see(&mut gaps, &writers(&["3/1"], &[]));
        assert!(look(&mut gaps, &[]).is_empty());
        see(&mut gaps, &writers(&["4/9"], &[]));
        assert_eq!(
            look(&mut gaps, &[]),
            [5..=5],
            "a writer that came later does not matter"
        );
    }

    #[test]
    fn a_row_that_turns_up_splits_its_gap() {
        let mut gaps = Gaps::new(10);
        gaps.open(5, 9, 0);
        see(&mut gaps, &writers(&["3/1"], &[]));
        look(&mut gaps, &[7]);
        assert_eq!(gaps.ranges(), [5..=6, 8..=9]);
        assert!(!gaps.contains(7));
        assert!(gaps.contains(8));
    }

    #[test]
    fn a_transaction_that_gets_prepared_still_holds_its_gap() {
        let mut gaps = Gaps::new(10);
        gaps.open(5, 5, 0);
        see(&mut gaps, &writers(&["3/1"], &[]));
        see(&mut gaps, &writers(&[], &["-1/700"]));
        assert!(look(&mut gaps, &[]).is_empty());
        see(&mut gaps, &writers(&[], &["-1/900"]));
        assert_eq!(look(&mut gaps, &[]), [5..=5]);
    }

    #[test]
    fn a_gap_known_in_part_keeps_the_state_of_that_part() {
        let mut gaps = Gaps::new(10);
        gaps.open(5, 5, 0);
        see(&mut gaps, &writers(&["3/1"], &[]));
        gaps.open(4, 6, 1);
        assert_eq!(gaps.ranges(), [4..=4, 5..=5, 6..=6]);
        see(&mut gaps, &writers(&["7/7"], &[]));
        assert_eq!(look(&mut gaps, &[]), [5..=5]);
    }

    #[test]
    fn a_look_that_stopped_early_closes_nothing() {
        let mut gaps = Gaps::new(10);
        gaps.open(1, 3, 0);
        see(&mut gaps, &writers(&[], &[]));
        let asked = gaps.ranges();
        assert!(gaps.looked(&asked, &[], false).is_empty());
        assert_eq!(gaps.looked(&asked, &[], true), [1..=3]);
    }

    #[test]
    fn a_gap_opened_during_a_look_is_not_closed_by_it() {
        let mut gaps = Gaps::new(10);
        gaps.open(1, 1, 0);
        see(&mut gaps, &writers(&[], &[]));
        let asked = gaps.ranges();
        gaps.open(9, 9, 0);
        see(&mut gaps, &writers(&[], &[]));
        assert_eq!(gaps.looked(&asked, &[], true), [1..=1]);
        assert_eq!(gaps.first(), Some(9));
    }

    #[test]
    fn a_gap_seen_after_the_writers_were_asked_waits_for_the_next_answer() {
        let mut gaps = Gaps::new(10);
        let asked = gaps.ranges();
        gaps.open(5, 5, 0);
        gaps.observe(&asked, &writers(&[], &[]));
        assert!(
            look(&mut gaps, &[]).is_empty(),
            "its writer may have begun after the answer"
        );
        see(&mut gaps, &writers(&["3/1"], &[]));
        assert!(look(&mut gaps, &[]).is_empty());
        see(&mut gaps, &writers(&[], &[]));
        assert_eq!(look(&mut gaps, &[]), [5..=5]);
    }

    #[test]
    fn the_number_of_ranges_is_bounded_and_merging_loses_nothing() {
        let mut gaps = Gaps::new(3);
        for seq in [10, 20, 22, 40, 60] {
            gaps.open(seq, seq, 0);
        }
        assert_eq!(gaps.len(), 3);
        assert_eq!(gaps.merged(), 2);
        assert!([10, 20, 22, 40, 60].iter().all(|seq| gaps.contains(*seq)));
    }

    #[test]
    fn the_ends_of_the_number_range_are_safe() {
        let mut gaps = Gaps::new(3);
        gaps.open(i64::MIN, -1, 0);
        gaps.open(i64::MAX - 1, i64::MAX, 0);
        gaps.fill(i64::MAX);
        gaps.fill(i64::MIN);
        assert_eq!(
            gaps.ranges(),
            [i64::MIN + 1..=-1, i64::MAX - 1..=i64::MAX - 1]
        );
    }
}
