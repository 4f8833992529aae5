//! When to connect: at once while that works, and after a failure at most once a second, whoever asks.
//!
//! A relay wants several things of a database at once, each with a pause of its own between attempts. A server that is about
//! to come back does not need all of them at its door. Attempts begin one after the other and do not wait for each other: one
//! to a machine that says nothing may hang for long.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::retry::jitter;
use crate::source::SourceError;

/// From the beginning of one attempt to the next, while they fail; up to a quarter more, so that instances do not come
/// together.
const PAUSE: Duration = Duration::from_secs(1);
/// An attempt that is given up sooner has not failed.
const BRIEF: Duration = Duration::from_millis(500);

/// The door of one database.
#[derive(Debug, Default)]
pub(super) struct Dial {
    state: Mutex<State>,
    /// An attempt has succeeded.
    opened: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// While attempts fail: when the next may begin.
    next: Option<Instant>,
    /// Attempts that failed, one after the other.
    failures: u32,
}

impl State {
    /// One began at this moment, and those after it have to wait.
    fn began(&mut self, at: Instant) {
        let spread = jitter(Uuid::new_v4(), self.failures);
        let next = at + PAUSE.mul_f64(1.0 + spread / 4.0);
        self.next = Some(self.next.map_or(next, |known| known.max(next)));
    }
}

impl Dial {
    /// Connects when it may. One that succeeds lets all who wait through.
    pub(super) async fn connect<T>(
        &self,
        attempt: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, SourceError> {
        loop {
            let opened = self.opened.notified();
            let Some(later) = self.ask(Instant::now()) else {
                break;
            };
            tokio::select! {
                () = tokio::time::sleep_until(later) => {}
                () = opened => {}
            }
        }
        let mut turn = Turn {
            dial: self,
            began: Instant::now(),
            connected: None,
        };
        let result = attempt.await;
        turn.connected = Some(result.is_ok());
        result
    }

    /// `None`: an attempt may begin now. Else: ask again at this moment.
    fn ask(&self, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        match state.next {
            Some(next) if next > now => Some(next),
            Some(_) => {
                state.began(now);
                None
            }
            None => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt under way.
struct Turn<'d> {
    dial: &'d Dial,
    began: Instant,
    /// How it ended; `None`: it was given up.
    connected: Option<bool>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.dial.lock();
        match self.connected {
            Some(true) => {
                *state = State::default();
                self.dial.opened.notify_waiters();
            }
            // Whoever wanted it has ended: that says nothing of the server.
            None if self.began.elapsed() < BRIEF => {}
            Some(false) | None => {
                state.failures = state.failures.saturating_add(1);
                state.began(self.began);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceErrorKind;

    async fn fail(dial: &Dial) {
        let error = SourceError::new(SourceErrorKind::Unavailable, "refused");
        let attempt = async { Err::<(), _>(error) };
        assert!(dial.connect(attempt).await.is_err());
    }

    async fn hang(dial: &Dial, limit: Duration) {
        let hangs = dial.connect(std::future::pending::<Result<(), SourceError>>());
        assert!(tokio::time::timeout(limit, hangs).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_make_one_attempt_a_second_until_one_succeeds() {
        let dial = Dial::default();
        fail(&dial).await;
        let began = Instant::now();
        tokio::join!(fail(&dial), fail(&dial), fail(&dial));
        let took = began.elapsed();
        assert!((3.0..3.76).contains(&took.as_secs_f64()), "{took:?}");
        let ok = || dial.connect(async { Ok(()) });
        let (a, b, c) = tokio::join!(ok(), ok(), ok());
        assert!(a.and(b).and(c).is_ok());
        let took = began.elapsed();
        assert!((4.0..5.01).contains(&took.as_secs_f64()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_holds_up_no_other() {
        let dial = Dial::default();
        fail(&dial).await;
        let began = Instant::now();
        let second = async {
            // Behind the other, which begins first.
            tokio::task::yield_now().await;
            dial.connect(async { Ok(()) }).await
        };
        let (_, second) = tokio::join!(hang(&dial, Duration::from_secs(3)), async {
            let second = second.await;
            (second.is_ok(), began.elapsed())
        });
        assert!(second.0 && second.1 < PAUSE * 3, "{second:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_is_given_up_counts() {
        let dial = Dial::default();
        let limit = Duration::from_millis(600);
        hang(&dial, limit).await;
        let began = Instant::now();
        assert!(dial.connect(async { Ok(()) }).await.is_ok());
        assert!(began.elapsed() >= PAUSE - limit);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_ends_in_the_middle_of_an_attempt_makes_nobody_wait() {
        let dial = Dial::default();
        hang(&dial, Duration::from_millis(50)).await;
        let began = Instant::now();
        assert!(dial.connect(async { Ok(()) }).await.is_ok());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
