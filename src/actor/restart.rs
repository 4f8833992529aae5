//! Supervision in one table: who is restarted, how often, how fast, and what a failure loses.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::retry::back_off;

/// The roles of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// One per relay.
    Supervisor,
    /// One per sink.
    Publisher,
    /// One per source.
    Database,
    /// One per source: writes outcomes.
    Settler,
    /// One per source: owns shards, reads.
    Claimer,
    /// One per feed and ordering key with work.
    Sequencer,
    /// One per source: housekeeping.
    Keeper,
}

impl Role {
    /// The word in status, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Publisher => "publisher",
            Self::Database => "database",
            Self::Settler => "settler",
            Self::Claimer => "claimer",
            Self::Sequencer => "sequencer",
            Self::Keeper => "keeper",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happens to the siblings when a child fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Only the child is restarted.
    Alone,
    /// The claimer starts anew with it: outcomes were lost, so the table is read again.
    WithClaimer,
    /// Not restarted; the parent reads its key again.
    Temporary,
    /// Nobody in the tree restarts it; the handle reports it.
    Root,
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Role.
    pub role: Role,
    /// What is restarted.
    pub scope: Scope,
    /// Restarts allowed within the window; one more and the child is parked and shown.
    pub budget: usize,
    /// The window.
    pub window: Duration,
    /// First pause before a restart; doubles with each restart in the window.
    pub pause: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// What is lost when it fails, and why that is no loss of events.
    pub lost: &'static str,
}

const fn rule(role: Role, scope: Scope, lost: &'static str) -> Rule {
    Rule {
        role,
        scope,
        budget: 10,
        window: Duration::from_secs(60),
        // 20, 40, 80 ms: a child that failed once or twice is back before anybody notices. All ten take 20 s: what
        // ails it may pass meanwhile.
        pause: Duration::from_millis(20),
        pause_max: Duration::from_secs(10),
        lost,
    }
}

/// The supervision table.
pub const TABLE: [Rule; 7] = [
    rule(
        Role::Supervisor,
        Scope::Root,
        "everything in memory; leases expire, the table is read again",
    ),
    rule(
        Role::Publisher,
        Scope::Alone,
        "the connection and what was in flight; sequencers offer it again under the same ids",
    ),
    rule(
        Role::Database,
        Scope::Alone,
        "its children; leases are reclaimed at once, the table is read again",
    ),
    rule(
        Role::Settler,
        Scope::WithClaimer,
        "outcomes not committed; those events are delivered again under the same ids",
    ),
    rule(
        Role::Claimer,
        Scope::Alone,
        "cursor and runs; shards are reclaimed under new tokens, the table is read again",
    ),
    rule(
        Role::Sequencer,
        Scope::Temporary,
        "its run; the key is read again from the table once its outcomes are settled",
    ),
    rule(
        Role::Keeper,
        Scope::Alone,
        "nothing: sampling, purging and signs of life go on after the restart",
    ),
];

/// The rule of a role.
pub fn rule_of(role: Role) -> &'static Rule {
    // The table has every role: a test walks it.
    TABLE
        .iter()
        .find(|rule| rule.role == role)
        .unwrap_or(&TABLE[0])
}

/// What the parent does about a failed child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Start it again after this pause.
    Restart(Duration),
    /// Leave it down and show it: its budget is spent.
    Park,
}

/// The restarts of one child. Times are milliseconds on any one clock.
#[derive(Debug, Clone, Default)]
pub struct Restarts {
    times: VecDeque<u64>,
}

impl Restarts {
    /// The child failed at `now`.
    pub fn failed(&mut self, rule: &Rule, now: u64) -> Decision {
        let window = rule.window.as_millis() as u64;
        while self
            .times
            .front()
            .is_some_and(|at| now.saturating_sub(*at) > window)
        {
            self.times.pop_front();
        }
        if self.times.len() >= rule.budget {
            return Decision::Park;
        }
        self.times.push_back(now);
        let recent = u32::try_from(self.times.len()).unwrap_or(u32::MAX);
        Decision::Restart(back_off(rule.pause, rule.pause_max, recent, 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_one_line() {
        for role in [
            Role::Supervisor,
            Role::Publisher,
            Role::Database,
            Role::Settler,
            Role::Claimer,
            Role::Sequencer,
            Role::Keeper,
        ] {
            assert_eq!(TABLE.iter().filter(|rule| rule.role == role).count(), 1);
            assert_eq!(rule_of(role).role, role);
        }
    }

    #[test]
    fn pauses_grow_and_a_spent_budget_parks() {
        let rule = rule_of(Role::Keeper);
        let mut restarts = Restarts::default();
        let mut pauses = Vec::new();
        for now in 0..rule.budget as u64 {
            match restarts.failed(rule, now) {
                Decision::Restart(pause) => pauses.push(pause),
                Decision::Park => panic!("parked early"),
            }
        }
        assert!(pauses.is_sorted() && pauses[0] == rule.pause);
        assert_eq!(pauses.last(), Some(&rule.pause_max));
        assert_eq!(restarts.failed(rule, 100), Decision::Park);
    }

    #[test]
    fn a_quiet_window_forgives() {
        let rule = rule_of(Role::Keeper);
        let mut restarts = Restarts::default();
        for now in 0..rule.budget as u64 {
            restarts.failed(rule, now);
        }
        let later = rule.window.as_millis() as u64 * 2;
        assert_eq!(restarts.failed(rule, later), Decision::Restart(rule.pause));
    }
}
