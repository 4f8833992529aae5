//! The gate of a sink: open while it takes events, closed while it takes none.
//!
//! ```text
//!            connection lost, or a second key refused with no success between
//!   open ──────────────────────────────────────────────────────────────> closed <── at start
//!     ^                                                                   │  pause over
//!     ├────────── any answer that is not "unavailable" ──── probing <─────┤
//!     │                                                        └── refused: closed, longer pause
//!     └────────── a fresh connection ─────────────────────────────────────┘
//! ```

use std::time::Duration;

use crate::retry::back_off;

/// First and longest pause between probes. Short at the longest: while refused keys keep the gate closed, this is
/// what an event of another key may have to wait, and a probe is a single event.
const PAUSE_BASE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What the gate is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Events pass.
    Open,
    /// Nothing passes.
    Closed,
    /// One event passes, to see.
    Probing,
}

impl State {
    /// The word in status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Probing => "probing",
        }
    }
}

/// How a hand-over ended, for the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The sink answered about the event: it is up, whatever the answer.
    Alive,
    /// The sink took nothing.
    Unavailable {
        /// The connection is gone.
        connection_lost: bool,
    },
    /// No answer: says nothing.
    Silence,
}

/// What the owner of the gate has to do after a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing changed.
    None,
    /// It opened: let everyone pass.
    Opened,
    /// It closed: let nobody pass, and probe after this pause.
    Closed(Duration),
}

/// The gate.
#[derive(Debug)]
pub struct Gate {
    state: State,
    /// The key whose event was refused last, with no success since.
    suspect: Option<u64>,
    failures: u32,
}

impl Gate {
    /// Closed: nothing is known of the sink yet.
    pub fn new() -> Self {
        Self {
            state: State::Closed,
            suspect: None,
            failures: 0,
        }
    }

    /// What it is now.
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes in how a hand-over of key `key` (a hash) ended. `jitter` is 0.0 to 1.0.
    pub fn sign(&mut self, key: u64, sign: Sign, jitter: f64) -> Turn {
        match sign {
            Sign::Alive => self.open(),
            Sign::Unavailable {
                connection_lost: true,
            } => self.close(jitter),
            Sign::Unavailable {
                connection_lost: false,
            } => {
                let second = self.suspect.is_some_and(|suspect| suspect != key);
                self.suspect = Some(key);
                if second || self.state != State::Open {
                    self.close(jitter)
                } else {
                    Turn::None
                }
            }
            Sign::Silence if self.state == State::Probing => self.close(jitter),
            Sign::Silence => Turn::None,
        }
    }

    /// A fresh connection stands and was checked: events pass.
    pub fn connected(&mut self) {
        self.state = State::Open;
        self.suspect = None;
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.state = State::Closed;
    }

    /// The pause is over: one event may pass.
    pub fn probe(&mut self) -> bool {
        if self.state == State::Closed {
            self.state = State::Probing;
        }
        self.state == State::Probing
    }

    fn open(&mut self) -> Turn {
        self.suspect = None;
        self.failures = 0;
        if self.state == State::Open {
            return Turn::None;
        }
        self.state = State::Open;
        Turn::Opened
    }

    fn close(&mut self, jitter: f64) -> Turn {
        // Late refusals of events that were out when the gate closed change nothing.
        if self.state == State::Closed {
            return Turn::None;
        }
        self.state = State::Closed;
        self.failures = self.failures.saturating_add(1);
        Turn::Closed(back_off(PAUSE_BASE, PAUSE_MAX, self.failures, jitter))
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Sign = Sign::Unavailable {
        connection_lost: false,
    };
    const LOST: Sign = Sign::Unavailable {
        connection_lost: true,
    };

    fn open_gate() -> Gate {
        let mut gate = Gate::new();
        gate.connected();
        gate
    }

    #[test]
    fn one_key_alone_does_not_close_it() {
        let mut gate = open_gate();
        for _ in 0..100 {
            assert_eq!(gate.sign(1, REFUSED, 0.0), Turn::None);
        }
        assert_eq!(gate.state(), State::Open);
    }

    #[test]
    fn a_second_key_with_no_success_between_closes_it() {
        let mut gate = open_gate();
        gate.sign(1, REFUSED, 0.0);
        gate.sign(3, Sign::Alive, 0.0);
        assert_eq!(gate.sign(2, REFUSED, 0.0), Turn::None);
        assert_eq!(gate.sign(1, REFUSED, 0.0), Turn::Closed(PAUSE_BASE));
    }

    #[test]
    fn a_lost_connection_closes_it_at_once() {
        let mut gate = open_gate();
        assert!(matches!(gate.sign(1, LOST, 0.0), Turn::Closed(_)));
        assert_eq!(
            gate.sign(2, LOST, 0.0),
            Turn::None,
            "the others only follow"
        );
    }

    #[test]
    fn failed_probes_lengthen_the_pause_and_any_answer_opens() {
        let mut gate = open_gate();
        gate.sign(1, LOST, 0.0);
        let mut pauses = Vec::new();
        for key in 0..8 {
            assert!(gate.probe());
            match gate.sign(key, REFUSED, 0.0) {
                Turn::Closed(pause) => pauses.push(pause.as_millis()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pauses, [400, 500, 500, 500, 500, 500, 500, 500]);
        gate.probe();
        assert_eq!(gate.sign(9, Sign::Alive, 0.0), Turn::Opened);
        assert_eq!(gate.failures, 0);
    }
}
