//! The forward cursor of a feed: a hint of how far reading has come, and what it saw missing.

use std::ops::RangeInclusive;

use super::gaps::Gaps;
use crate::relay::GapGuard;
use crate::source::Writers;

/// With [`GapGuard::Hold`]: most gaps ahead of the cursor.
const MAX_HELD: usize = 256;

/// How far a feed has read, with the numbers that were missing on the way.
#[derive(Debug)]
pub struct Cursor {
    at: i64,
    /// With [`GapGuard::Hold`]: everything up to here was read past once.
    looked_to: i64,
    guard: GapGuard,
    /// False where commits appear in the order of their numbers: nothing is ever missing.
    watch_gaps: bool,
    gaps: Gaps,
}

impl Cursor {
    /// Before the first row.
    pub fn new(guard: GapGuard, watch_gaps: bool, max_gaps: usize) -> Self {
        Self {
            at: i64::MIN,
            looked_to: i64::MIN,
            guard,
            watch_gaps,
            gaps: Gaps::new(max_gaps),
        }
    }

    /// Reads continue behind this number.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// The open gaps.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// Moves over a batch of visible rows (`seqs`, ascending, all above the cursor). Returns how many of them may
    /// be used: all, or, with [`GapGuard::Hold`], those before the first open gap.
    pub fn advance(&mut self, seqs: &[i64], now: u64) -> usize {
        match self.guard {
            GapGuard::Off => {
                for seq in seqs {
                    self.open_gap(self.at, *seq, now);
                    self.at = *seq;
                }
                seqs.len()
            }
            GapGuard::Hold => self.advance_to_a_gap(seqs, now),
        }
    }

    /// Numbers that were missing when they were first read past are gaps, many of them at once; others that are missing
    /// later were seen, and somebody has settled them since.
    fn advance_to_a_gap(&mut self, seqs: &[i64], now: u64) -> usize {
        let mut before = self.at;
        let mut looked = 0;
        for seq in seqs {
            if self.gaps.len() >= MAX_HELD {
                break;
            }
            self.open_gap(before.max(self.looked_to), *seq, now);
            before = *seq;
            looked += 1;
        }
        self.looked_to = self.looked_to.max(before);
        let first = self.gaps.first().filter(|first| *first > self.at);
        let before_it = |first| seqs.partition_point(|seq| *seq < first);
        let usable = first.map_or(looked, before_it).min(looked);
        if let Some(last) = seqs[..usable].last() {
            self.at = *last;
        }
        if let Some(first) = first.filter(|_| usable < looked) {
            self.at = self.at.max(first - 1);
        }
        usable
    }

    /// The numbers between these two are missing, if there are any.
    fn open_gap(&mut self, before: i64, seq: i64, now: u64) {
        let missing = before.saturating_add(1)..=seq.saturating_sub(1);
        if self.watch_gaps && before < i64::MAX && missing.start() <= missing.end() {
            self.gaps.open(*missing.start(), *missing.end(), now);
        }
    }

    /// Is reading forward of use? Not while `hold` waits at a gap that begins right behind the cursor.
    pub fn may_read(&self) -> bool {
        self.guard == GapGuard::Off
            || self
                .gaps
                .first()
                .is_none_or(|first| first > self.at.saturating_add(1))
    }

    /// These transactions are under way.
    pub fn observe(&mut self, asked: &[RangeInclusive<i64>], writers: &Writers) {
        self.gaps.observe(asked, writers);
    }

    /// Takes in a look into gaps: the numbers `seen` there, and whether those were all. True: some gaps are gone.
    pub fn looked(&mut self, asked: &[RangeInclusive<i64>], seen: &[i64], complete: bool) -> bool {
        for seq in seen {
            self.fill(*seq);
        }
        let closed = self.gaps.looked(asked, &[], complete);
        if self.guard == GapGuard::Hold {
            // Over those right behind it.
            for range in &closed {
                if *range.start() == self.at.saturating_add(1) {
                    self.at = *range.end();
                }
            }
        }
        !closed.is_empty()
    }

    /// A number turned up. With `hold` the forward read brings it, and a read that began before is not to pass it.
    pub fn fill(&mut self, seq: i64) {
        if self.gaps.fill(seq) {
            self.looked_to = self.looked_to.min(seq.saturating_sub(1));
        }
    }

    /// Gaps to look into behind a read: none with `hold`, where nothing above a gap is used.
    pub fn late_ranges(&self) -> Vec<RangeInclusive<i64>> {
        match self.guard {
            GapGuard::Off => self.gaps.ranges(),
            GapGuard::Hold => Vec::new(),
        }
    }

    /// Rows found in gaps go to their keys at once; with `hold` the forward read brings them.
    pub fn delivers_finds(&self) -> bool {
        self.guard == GapGuard::Off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(cursor: &mut Cursor, seen: &[i64]) {
        let asked = cursor.gaps().ranges();
        cursor.observe(&asked, &Writers::default());
        cursor.looked(&asked, seen, true);
    }

    #[test]
    fn off_goes_on_and_remembers_what_was_missing() {
        let mut cursor = Cursor::new(GapGuard::Off, true, 100);
        assert_eq!(cursor.advance(&[1, 2, 5, 6], 0), 4);
        assert_eq!(cursor.at(), 6);
        assert!(cursor.gaps().contains(3) && cursor.gaps().contains(4));
        assert!(
            cursor.gaps().contains(0),
            "what lies before the first row may come late too"
        );
        assert!(cursor.may_read());
    }

    #[test]
    fn hold_stops_before_a_gap_and_steps_over_it_when_it_closes() {
        let mut cursor = Cursor::new(GapGuard::Hold, true, 100);
        assert_eq!(
            cursor.advance(&[1, 2, 5], 0),
            0,
            "who may come before the first row?"
        );
        assert!(!cursor.may_read());
        look(&mut cursor, &[4]);
        // This read began before the fourth was committed.
        assert_eq!(cursor.advance(&[1, 2, 5], 0), 2);
        assert!(cursor.gaps().contains(4) && !cursor.may_read());
        look(&mut cursor, &[4]);
        assert_eq!(cursor.advance(&[4, 5], 0), 2);
        assert_eq!(cursor.at(), 5);
    }

    #[test]
    fn hold_looks_into_all_gaps_of_a_read_at_once_and_not_twice() {
        let mut cursor = Cursor::new(GapGuard::Hold, true, 100);
        cursor.advance(&[1], 0);
        look(&mut cursor, &[]);
        assert_eq!(cursor.advance(&[1, 3, 5, 7, 9], 0), 1);
        look(&mut cursor, &[]);
        // Meanwhile another owner has settled the fifth.
        assert_eq!(cursor.advance(&[3, 7, 9, 11], 0), 3);
        assert_eq!(cursor.gaps().ranges(), [10..=10]);
    }

    #[test]
    fn hold_takes_a_wide_spread_of_gaps_in_steps() {
        let mut cursor = Cursor::new(GapGuard::Hold, true, 10_000);
        let seqs: Vec<i64> = (0..2_000).map(|n| n * 2).collect();
        let (mut taken, mut looks) = (0, 0);
        while taken < seqs.len() {
            taken += cursor.advance(&seqs[taken..], 0);
            assert!(cursor.gaps().len() <= MAX_HELD);
            look(&mut cursor, &[]);
            looks += 1;
        }
        assert!(looks < 20, "{looks}");
    }

    #[test]
    fn hold_reads_on_when_the_missing_row_turns_up() {
        let mut cursor = Cursor::new(GapGuard::Hold, true, 100);
        cursor.advance(&[1], 0);
        look(&mut cursor, &[]);
        assert_eq!(cursor.advance(&[1, 3], 0), 1);
        cursor.fill(2);
        assert!(cursor.may_read());
        assert_eq!(cursor.advance(&[2, 3], 0), 2);
    }

    #[test]
    fn a_single_writer_leaves_no_gaps() {
        let mut cursor = Cursor::new(GapGuard::Hold, false, 100);
        assert_eq!(cursor.advance(&[5, 9], 0), 2);
        assert!(cursor.gaps().is_empty());
    }

    #[test]
    fn the_last_number_of_all_does_not_overflow() {
        let mut cursor = Cursor::new(GapGuard::Off, true, 100);
        assert_eq!(cursor.advance(&[i64::MAX - 1, i64::MAX], 0), 2);
        assert_eq!(cursor.at(), i64::MAX);
        assert_eq!(cursor.advance(&[], 0), 0);
    }
}
