//! Whose turn it is to connect: one at a time, and after a failure at most one attempt a second, whoever asks.
//!
//! A relay wants several things of a database at once, each with a pause of its own between attempts. A server that is about
//! to come back does not need all of them at its door.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use crate::retry::jitter;
use crate::source::SourceError;

/// From one attempt to the next, while they fail; up to a quarter more, so that instances do not come together.
const PAUSE: Duration = Duration::from_secs(1);

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
        let mut failed = self.failed.lock().await;
        let count = failed.as_ref().map_or(0, |failed| failed.count);
        if let Some(last) = &*failed {
            let spread = jitter(Uuid::new_v4(), count);
            tokio::time::sleep_until(last.at + PAUSE.mul_f64(1.0 + spread / 4.0)).await;
        }
        // Taken for a failure until it succeeds: whoever waits for it may be cut off.
        *failed = Some(Failed {
            at: Instant::now(),
            count: count.saturating_add(1),
        });
        let connected = attempt.await?;
        *failed = None;
        Ok(connected)
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
        let limit = Duration::from_millis(200);
        assert!(tokio::time::timeout(limit, hangs).await.is_err());
        let began = Instant::now();
        assert!(dial.connect(async { Ok(()) }).await.is_ok());
        assert!(began.elapsed() >= PAUSE - limit);
    }
}
