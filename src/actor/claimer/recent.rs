//! Settled seqs that a read begun before their commit may still show.

use std::collections::{BTreeSet, HashSet, VecDeque};

/// Remembers a settled seq until every read that was under way at that moment has returned.
#[derive(Debug, Default)]
pub struct Recent {
    reads: BTreeSet<u64>,
    next_read: u64,
    /// Seqs with the youngest read under way when they were settled, ascending.
    queue: VecDeque<(u64, i64)>,
    seqs: HashSet<i64>,
}

impl Recent {
    /// A read begins; give the number back to [`Recent::read_ended`].
    pub fn read_began(&mut self) -> u64 {
        let id = self.next_read;
        self.next_read += 1;
        self.reads.insert(id);
        id
    }

    /// A read's rows were taken in, or it failed.
    pub fn read_ended(&mut self, id: u64) {
        self.reads.remove(&id);
        let oldest = self.reads.first().copied().unwrap_or(u64::MAX);
        while let Some((youngest, seq)) = self.queue.front().copied() {
            if youngest >= oldest {
                break;
            }
            self.queue.pop_front();
            self.seqs.remove(&seq);
        }
    }

    /// A seq was settled.
    pub fn add(&mut self, seq: i64) {
        if let Some(youngest) = self.reads.last()
            && self.seqs.insert(seq)
        {
            self.queue.push_back((*youngest, seq));
        }
    }

    /// Was it settled while a read was under way that has not returned yet?
    pub fn contains(&self, seq: i64) -> bool {
        self.seqs.contains(&seq)
    }

    /// Forgets one seq: it came back on purpose.
    pub fn remove(&mut self, seq: i64) {
        self.seqs.remove(&seq);
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn a_settled_seq_is_remembered_until_earlier_reads_returned() {
        let mut recent = Recent::default();
        let first = recent.read_began();
        recent.add(7);
        let second = recent.read_began();
        assert!(recent.contains(7));
        recent.read_ended(first);
        assert!(
            !recent.contains(7),
            "the second read began after the commit"
        );
        recent.add(8);
        recent.read_ended(second);
        assert!(!recent.contains(8));
    }

    #[test]
    fn nothing_is_kept_when_no_read_is_under_way() {
        let mut recent = Recent::default();
        recent.add(7);
        assert!(!recent.contains(7));
    }
}
