//! Until when something may be sent, and how long an answer is waited for.

use std::time::Duration;

use tokio::time::Instant;

use crate::lease::Deadline;

/// The time of one hand-over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    /// Longest wait for one answer.
    pub(super) timeout: Duration,
    end: Instant,
    /// The end again, by a clock that also runs while the machine sleeps: whoever slept past it sends nothing more.
    last_send: Deadline,
}

impl Time {
    /// From now on: for each answer `timeout`, for all of it `limit`.
    pub(super) fn from_now(timeout: Duration, limit: Duration) -> Self {
        Self {
            timeout,
            end: Instant::now() + limit,
            last_send: Deadline::now().after(limit),
        }
    }

    /// When an answer that is waited for from now on is late.
    pub(super) fn answer_by(&self) -> Instant {
        self.end.min(Instant::now() + self.timeout)
    }

    /// How long it still lasts.
    pub(super) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Nothing is sent any more.
    pub(super) fn is_over(&self) -> bool {
        Deadline::now() >= self.last_send
    }
}
