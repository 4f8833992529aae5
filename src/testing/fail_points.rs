//! Fail points: places in the program, each with a name, where a test makes it die, panic or wait.
//!
//! They are there with the feature `testing` only; without it the macros below leave nothing behind. A test names points
//! and what happens there to the process that it starts:
//!
//! ```text
//! OUTBOXD_FAIL_POINTS="settle.written=abort@3,lease.renewed=pause:200"
//! ```
//!
//! The crate `fail` would serve for less: it has no action that ends the process, it blocks the thread where our points
//! stand in tasks, and its points are strings that nobody can list. Ours are the variants of `Point`, so that a test
//! goes through all of them, those included that are added later.

#[cfg(feature = "testing")]
mod armed;

#[cfg(feature = "testing")]
pub use armed::{Point, arm};
#[cfg(feature = "testing")]
pub(crate) use armed::{hit, under_way};

/// Stops here for what a test has armed the point with.
macro_rules! fail_point {
    ($point:ident) => {
        #[cfg(feature = "testing")]
        $crate::testing::fail_points::hit($crate::testing::fail_points::Point::$point).await;
    };
    ($point:ident if $when:expr) => {
        #[cfg(feature = "testing")]
        if $when {
            $crate::testing::fail_points::fail_point!($point);
        }
    };
}

/// A call with a point that is hit when the call has begun and is not answered at once.
macro_rules! with_fail_point {
    ($point:ident, $call:expr) => {{
        #[cfg(not(feature = "testing"))]
        let call = $call;
        #[cfg(feature = "testing")]
        let call = $crate::testing::fail_points::under_way(
            $crate::testing::fail_points::Point::$point,
            $call,
        );
        call
    }};
}

pub(crate) use {fail_point, with_fail_point};
