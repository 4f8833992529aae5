//! Subjects on which nobody answered: an event of a batch that waits in vain holds up all the others.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Subjects remembered; beyond it the memory starts anew.
const MOST: usize = 1_024;

/// What is remembered for one connection.
#[derive(Debug, Default)]
pub(super) struct Silent {
    subjects: Mutex<HashSet<String>>,
    /// Looked at first: nearly always there is none.
    count: AtomicUsize,
}

impl Silent {
    /// Nobody answered on this subject in time.
    pub(super) fn add(&self, subject: &str) {
        self.change(|subjects| {
            if subjects.len() >= MOST {
                subjects.clear();
            }
            subjects.insert(subject.to_owned());
        });
    }

    /// Somebody answered.
    pub(super) fn heard(&self, subject: &str) {
        if !self.is_empty() {
            self.change(|subjects| {
                subjects.remove(subject);
            });
        }
    }

    /// Did nobody answer on it the last time?
    pub(super) fn includes(&self, subject: &str) -> bool {
        !self.is_empty() && self.lock().contains(subject)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn change(&self, change: impl FnOnce(&mut HashSet<String>)) {
        let mut subjects = self.lock();
        change(&mut subjects);
        self.count.store(subjects.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_silent_until_somebody_answers_on_it() {
        let silent = Silent::default();
        silent.add("a");
        silent.heard("b");
        assert!(silent.includes("a") && !silent.includes("b"));
        silent.heard("a");
        assert!(!silent.includes("a"));
    }

    #[test]
    fn the_memory_has_a_bound() {
        let silent = Silent::default();
        for n in 0..=MOST {
            silent.add(&n.to_string());
        }
        assert!(silent.includes(&MOST.to_string()) && !silent.includes("0"));
    }
}
