//! The forward cursor of a feed: a hint of how far reading has come, and what it saw missing.

use super::gaps::Gaps;
use crate::relay::GapGuard;

/// How far a feed has read, with the numbers that were missing on the way.
#[derive(Debug)]
pub struct Cursor {
    at: i64,
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

    /// The open gaps, to take in looks and writers.
    pub fn gaps_mut(&mut self) -> &mut Gaps {
        &mut self.gaps
    }

    /// Moves over a batch of visible rows (`seqs`, ascending, all above the cursor). Returns how many of them may
    /// be used: all, or, with [`GapGuard::Hold`], those before the first open gap.
    pub fn advance(&mut self, seqs: &[i64], now: u64) -> usize {
        for (index, seq) in seqs.iter().enumerate() {
            let missing = self.at.saturating_add(1)..=seq.saturating_sub(1);
            if self.watch_gaps && self.at < i64::MAX && missing.start() <= missing.end() {
                self.gaps.open(*missing.start(), *missing.end(), now);
                if self.guard == GapGuard::Hold {
                    return index;
                }
            }
            self.at = *seq;
        }
        seqs.len()
    }

    /// Is reading forward of use? Not while `hold` waits at a gap that begins right behind the cursor.
    pub fn may_read(&self) -> bool {
        self.guard == GapGuard::Off
            || self
                .gaps
                .first()
                .is_none_or(|first| first > self.at.saturating_add(1))
    }

    /// Takes in the gaps that closed: with `hold`, the cursor steps over those right behind it.
    pub fn closed(&mut self, ranges: &[std::ops::RangeInclusive<i64>]) {
        if self.guard == GapGuard::Hold {
            for range in ranges {
                if *range.start() == self.at.saturating_add(1) {
                    self.at = *range.end();
                }
            }
        }
    }

    /// Gaps to look into behind a read: none with `hold`, where nothing above a gap is used.
    pub fn late_ranges(&self) -> Vec<std::ops::RangeInclusive<i64>> {
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
    use crate::source::Writers;

    fn look(cursor: &mut Cursor, seen: &[i64]) {
        let asked = cursor.gaps().ranges();
        cursor.gaps_mut().observe(&asked, &Writers::default());
        let closed = cursor.gaps_mut().looked(&asked, seen, true);
        cursor.closed(&closed);
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
        look(&mut cursor, &[]);
        assert_eq!(cursor.advance(&[1, 2, 5], 0), 2);
        assert!(!cursor.may_read());
        look(&mut cursor, &[]);
        assert_eq!(cursor.at(), 4);
        assert_eq!(cursor.advance(&[5], 0), 1);
    }

    #[test]
    fn hold_reads_on_when_the_missing_row_turns_up() {
        let mut cursor = Cursor::new(GapGuard::Hold, true, 100);
        cursor.advance(&[1], 0);
        look(&mut cursor, &[]);
        assert_eq!(cursor.advance(&[1, 3], 0), 1);
        cursor.gaps_mut().fill(2);
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
