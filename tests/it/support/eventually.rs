//! Waiting for a condition, with a deadline and the last state in words.

use std::panic::Location;
use std::time::Duration;

use tokio::time::Instant;

/// Pause between two looks at the condition.
const PAUSE: Duration = Duration::from_millis(10);

/// Polls `check` every 10 ms until it says `Ok`, and gives its value back. After `deadline` the test
/// fails with `what` and the last `Err`, so say there what you saw: `Err(format!("{n} of 10 rows"))`.
#[track_caller]
pub fn eventually<T, F, C>(
    deadline: Duration,
    what: &str,
    mut check: F,
) -> impl Future<Output = T> + use<T, F, C>
where
    F: FnMut() -> C,
    C: Future<Output = Result<T, String>>,
{
    let caller = Location::caller();
    let what = what.to_owned();
    async move {
        let end = Instant::now() + deadline;
        let mut last = "the condition was never evaluated to the end".to_owned();
        loop {
            match tokio::time::timeout_at(end, check()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(state)) => last = state,
                Err(_) => {}
            }
            if Instant::now() + PAUSE > end {
                panic!(
                    "{caller}: waited {deadline:?} in vain for this: {what}; last state: {last}"
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
