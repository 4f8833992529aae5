//! What is armed, and what happens when a point is hit.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

/// From the moment a point is hit until the process ends: its task stays where it is, and what is on its way elsewhere,
/// such as bytes that a client still has, gets the time to arrive.
const MOMENT: Duration = Duration::from_millis(20);

macro_rules! points {
    ($($(#[doc = $doc:literal])+ $point:ident = $name:literal,)+) => {
        /// A place where a test can make the program fail.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Point {
            $($(#[doc = $doc])+ $point,)+
        }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$point,)+];

            /// By this a test names it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)+
                }
            }
        }
    };
}

points! {
    /// Shards are acquired, and nothing is read.
    Acquired = "lease.acquired",
    /// A renewal is due.
    RenewalDue = "lease.renewal_due",
    /// A renewal is on its way.
    RenewalSent = "lease.renewal_sent",
    /// A renewal is answered, and nobody knows.
    Renewed = "lease.renewed",
    /// Rows are read, and not handed over.
    RowsRead = "read.rows",
    /// Events are noted as in hand, by an owner that works with care, and not handed over.
    Noted = "care.noted",
    /// Events are handed over to the publisher, and not sent.
    HandedOver = "publish.handed_over",
    /// Events are on their way to the sink, and not answered.
    Sent = "publish.sent",
    /// The sink has answered, and nobody knows.
    Answered = "publish.answered",
    /// A settlement is about to be written.
    Settling = "settle.begun",
    /// A settlement is on its way to the database.
    SettlementSent = "settle.sent",
    /// A settlement is committed, and nobody knows.
    Settled = "settle.committed",
    /// Everything is drained, and the leases are not given back.
    Drained = "drain.done",
    /// The leases are given back, and the end is not told.
    Released = "drain.released",
}

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// The process ends at once, as by `kill -9`, after a [`MOMENT`].
    Abort,
    Panic,
    Pause(Duration),
}

/// A point with what happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Armed {
    point: Point,
    action: Action,
    /// So many times it is passed before.
    passes: u32,
}

/// Looked at first: most of what is built for tests has nothing armed.
static IS_ARMED: AtomicBool = AtomicBool::new(false);
static ARMED: Mutex<Vec<Armed>> = Mutex::new(Vec::new());

fn armed() -> MutexGuard<'static, Vec<Armed>> {
    ARMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arms points for the whole process, beside those that are armed already: `NAME=ACTION` or `NAME=ACTION@N`, separated
/// by commas. Actions are `abort`, `panic` and `pause:MILLISECONDS`. What is armed happens once, the `N`th time (from 1) that
/// the point is hit.
///
/// # Errors
/// In words, when something is not understood; then nothing is armed.
pub fn arm(text: &str) -> Result<(), String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let new: Vec<Armed> = parts.map(parse).collect::<Result<_, _>>()?;
    let mut armed = armed();
    armed.extend(new);
    IS_ARMED.store(!armed.is_empty(), Ordering::Release);
    Ok(())
}

fn parse(part: &str) -> Result<Armed, String> {
    let (name, action) = part
        .split_once('=')
        .ok_or_else(|| format!("{part}: there is no `=`"))?;
    let point = Point::ALL.iter().find(|point| point.name() == name);
    let point = *point.ok_or_else(|| format!("{name}: there is no such fail point"))?;
    let (action, time) = action.split_once('@').unwrap_or((action, "1"));
    let number = |text: &str| {
        let number = text.parse::<u32>();
        number.map_err(|error| format!("{part}: {text}: {error}"))
    };
    let action = match action.split_once(':') {
        None if action == "abort" => Action::Abort,
        None if action == "panic" => Action::Panic,
        Some(("pause", time)) => Action::Pause(Duration::from_millis(number(time)?.into())),
        _ => return Err(format!("{part}: there is no action {action}")),
    };
    let passes = number(time)?
        .checked_sub(1)
        .ok_or_else(|| format!("{part}: the first time is 1"))?;
    Ok(Armed {
        point,
        action,
        passes,
    })
}

/// Takes what happens now, if anything does.
fn take(point: Point) -> Option<Action> {
    let mut armed = armed();
    let mut due = None;
    armed.retain_mut(|one| {
        if one.point != point || due.is_some() {
            return true;
        }
        match one.passes.checked_sub(1) {
            Some(passes) => one.passes = passes,
            None => due = Some(one.action),
        }
        due.is_none()
    });
    due
}

/// The program is at this point.
pub(crate) async fn hit(point: Point) {
    if !IS_ARMED.load(Ordering::Acquire) {
        return;
    }
    let Some(action) = take(point) else { return };
    tracing::warn!(point = point.name(), ?action, "a fail point is hit");
    match action {
        Action::Abort => {
            // On a task of its own: the one that is here may be given up meanwhile.
            tokio::spawn(async {
                tokio::time::sleep(MOMENT).await;
                std::process::abort();
            });
            pending().await
        }
        Action::Panic => panic!("fail point {}", point.name()),
        Action::Pause(time) => tokio::time::sleep(time).await,
    }
}

/// Runs a call; the program is at this point once the call waits for somebody.
pub(crate) async fn under_way<T>(point: Point, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    let begun = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
    match begun {
        Poll::Ready(answer) => answer,
        Poll::Pending => {
            hit(point).await;
            call.await
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_names_of_one_point_each() {
        let names: HashSet<_> = Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
        for point in Point::ALL {
            let armed = parse(&format!("{}=abort@3", point.name())).unwrap();
            let expected = Armed {
                point: *point,
                action: Action::Abort,
                passes: 2,
            };
            assert_eq!(armed, expected);
        }
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (text, words) in [
            ("settle.begun", "no `=`"),
            ("settle.nowhere=abort", "no such fail point"),
            ("settle.begun=explode", "no action explode"),
            ("settle.begun=pause:soon", "soon"),
            ("settle.begun=abort@0", "the first time is 1"),
            ("read.rows=abort,settle.begun=abort@x", "x"),
        ] {
            let error = arm(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(!armed().iter().any(|one| one.point == Point::RowsRead));
    }

    /// The points of drains, which no other unit test comes by.
    #[tokio::test(start_paused = true)]
    async fn a_point_strikes_once_at_its_time() {
        arm("drain.done=pause:500@2, drain.released=panic").unwrap();
        let began = tokio::time::Instant::now();
        hit(Point::Drained).await;
        assert!(began.elapsed().is_zero());
        hit(Point::Drained).await;
        assert_eq!(began.elapsed(), Duration::from_millis(500));
        hit(Point::Drained).await;
        assert_eq!(began.elapsed(), Duration::from_millis(500));
        assert_eq!(under_way(Point::Released, async { 1 }).await, 1, "no wait");
        let waits = async {
            tokio::task::yield_now().await;
            2
        };
        let struck = tokio::spawn(under_way(Point::Released, waits)).await;
        assert!(struck.unwrap_err().is_panic());
    }
}
