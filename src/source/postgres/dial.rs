//! Whose turn it is to connect: one at a time, and after a failure at most one attempt a second, whoever asks.
//!
//! A relay wants several things of a database at once, each with a pause of its own between attempts. A server that is about
//! to come back does not need all of them at its door.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use uuid::Uuid;

use crate::retry::jitter;
use crate::source::SourceError;

/// From one attempt to the next, while they fail; up to a quarter more, so that instances do not come together.
const PAUSE: Duration = Duration::from_secs(1);

/// An attempt that is given up sooner has not failed.
const BRIEF: Duration = Duration::from_millis(500);

/// The door of one database.
#[derive(Debug, Default)]
pub(super) struct Dial {
    failed: Mutex<Option<Failed>>,
}

/// Attempts that failed, one after the other.
#[derive(Debug)]
struct Failed {
    /// When the last of them began.
    at: Instant,
    count: u32,
}

impl Dial {
    /// Connects when it is its turn. One that succeeds lets all who wait through.
    pub(super) async fn connect<T>(
        &self,
        attempt: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, SourceError> {
        let failed = self.failed.lock().await;
        let count = failed.as_ref().map_or(0, |failed| failed.count);
        if let Some(last) = &*failed {
            let spread = jitter(Uuid::new_v4(), count);
            tokio::time::sleep_until(last.at + PAUSE.mul_f64(1.0 + spread / 4.0)).await;
        }
        let mut turn = Turn {
            failed,
            began: Instant::now(),
            connected: None,
        };
        let result = attempt.await;
        turn.connected = Some(result.is_ok());
        result
    }
}

/// An attempt under way.
struct Turn<'d> {
    failed: MutexGuard<'d, Option<Failed>>,
    began: Instant,
    /// How it ended; `None`: it was given up.
    connected: Option<bool>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        match self.connected {
            Some(true) => *self.failed = None,
            // Whoever wanted it has ended: that says nothing of the server.
            None if self.began.elapsed() < BRIEF => {}
            Some(false) | None => {
                let before = self.failed.as_ref().map_or(0, |failed| failed.count);
                *self.failed = Some(Failed {
                    at: self.began,
                    count: before.saturating_add(1),
                });
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

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_make_one_attempt_a_second_until_one_succeeds() {
        let dial = Dial::default();
        let began = Instant::now();
        tokio::join!(fail(&dial), fail(&dial), fail(&dial), fail(&dial));
        let took = began.elapsed();
        assert!((3.0..3.75).contains(&took.as_secs_f64()), "{took:?}");
        let ok = || dial.connect(async { Ok(()) });
        let (a, b, c) = tokio::join!(ok(), ok(), ok());
        assert!(a.and(b).and(c).is_ok());
        let took = began.elapsed();
        assert!((4.0..5.0).contains(&took.as_secs_f64()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_is_given_up_counts() {
        let dial = Dial::default();
        let hangs = dial.connect(std::future::pending::<Result<(), SourceError>>());
        let limit = Duration::from_millis(600);
        assert!(tokio::time::timeout(limit, hangs).await.is_err());
        let began = Instant::now();
        assert!(dial.connect(async { Ok(()) }).await.is_ok());
        assert!(began.elapsed() >= PAUSE - limit);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_ends_in_the_middle_of_an_attempt_makes_nobody_wait() {
        let dial = Dial::default();
        let hangs = dial.connect(std::future::pending::<Result<(), SourceError>>());
        let limit = Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, hangs).await.is_err());
        let began = Instant::now();
        assert!(dial.connect(async { Ok(()) }).await.is_ok());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
