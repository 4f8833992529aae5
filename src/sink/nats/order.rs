//! How order is kept, chosen by what the stream allows.

use std::time::Duration;

use super::stream::Config;
use super::{Mode, atomic, fast};
use crate::sink::Lanes;

/// Bytes of a batch, at most.
const BYTES: usize = 4 << 20;
/// Which part of the stream's dedupe window it may take to ask for the events of a batch one by one.
const WINDOW_PART: u128 = 4;
/// Another lane for so many milliseconds of a round trip, up to this many.
const ROUND_TRIP_OF_A_LANE: u128 = 5;
const MOST: usize = 8;

/// How order is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Fast-ingest batches.
    Lane,
    /// Long runs as atomic batches; otherwise one event of a key in flight.
    Atomic,
    /// One event of a key in flight.
    Single,
}

impl Order {
    /// What to do with this stream: what is configured, where the stream allows it.
    pub(super) fn of(mode: Mode, stream: &Config) -> Self {
        match mode {
            Mode::Auto | Mode::Lane if stream.allow_batched => Self::Lane,
            Mode::Auto | Mode::Atomic if stream.allow_atomic => Self::Atomic,
            Mode::Auto | Mode::Lane | Mode::Atomic | Mode::Single => Self::Single,
        }
    }

    /// The word in status and configuration.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Atomic => "atomic",
            Self::Single => "single",
        }
    }

    /// `window`: how long the stream remembers message ids; `round_trip`: how long it takes to answer.
    pub(super) fn lanes(self, window: Duration, round_trip: Duration) -> Option<Lanes> {
        let most = match self {
            Self::Lane => fast::MESSAGES,
            Self::Atomic => atomic::MESSAGES,
            Self::Single => return None,
        };
        // After a lost answer each event of a key may have to be asked for by itself, while the stream knows its id.
        let askable = window.as_nanos() / WINDOW_PART / round_trip.as_nanos().max(1);
        let events = usize::try_from(askable).unwrap_or(most).clamp(1, most);
        // A lane has one batch under way, so the longer an answer takes, the more of them it takes to fill the time.
        let count = round_trip.as_millis() / ROUND_TRIP_OF_A_LANE;
        Some(Lanes {
            count: usize::try_from(count).unwrap_or(MOST).clamp(1, MOST),
            events,
            bytes: BYTES,
        })
    }
}

/// How order is kept with this stream, what that costs, and what would be better: for `check`.
pub(super) fn remark(mode: Mode, stream: &Config) -> String {
    let name = &stream.name;
    match Order::of(mode, stream) {
        Order::Lane => format!(
            "stream {name} allows batches (allow_batched): many events of a key are in flight, in ordered lanes"
        ),
        Order::Atomic => format!(
            "runs of {} events and more go to stream {name} as atomic batches (allow_atomic); otherwise one event of \
             each key is in flight, so a key gets one event a round trip: allow_batched on the stream (nats-server \
             2.14) lifts that",
            atomic::WORTHWHILE
        ),
        Order::Single if mode == Mode::Single => format!(
            "mode = single: one event of each key is in flight, so a key gets one event a round trip to stream {name}"
        ),
        Order::Single => format!(
            "stream {name} allows no batches: one event of each key is in flight, so a key gets one event a round \
             trip: allow_batched on the stream (nats-server 2.14) lifts that"
        ),
    }
}

/// A mode that is asked for and that the stream does not allow.
pub(super) fn finding(mode: Mode, stream: &Config) -> Option<String> {
    let (asked, flag, since) = match mode {
        Mode::Lane => (Order::Lane, "allow_batched", "2.14"),
        Mode::Atomic => (Order::Atomic, "allow_atomic", "2.12"),
        Mode::Auto | Mode::Single => return None,
    };
    (Order::of(mode, stream) != asked).then(|| {
        format!(
            "mode = {} needs {flag} on stream {}, which is off or unknown to the server (nats-server {since} or newer \
             has it): until then one event of each key is in flight",
            asked.as_str(),
            stream.name
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_longer_the_way_the_more_lanes() {
        let count = |round_trip| {
            let round_trip = Duration::from_millis(round_trip);
            let lanes = Order::Lane.lanes(Duration::from_secs(120), round_trip);
            lanes.unwrap().count
        };
        assert_eq!([0, 4, 10, 1_000].map(count), [1, 1, 2, MOST]);
    }

    #[test]
    fn a_batch_is_no_longer_than_can_be_asked_for_within_the_dedupe_window() {
        let events = |window, round_trip| {
            let round_trip = Duration::from_millis(round_trip);
            let lanes = Order::Lane.lanes(Duration::from_secs(window), round_trip);
            lanes.unwrap().events
        };
        assert_eq!(events(120, 0), fast::MESSAGES);
        assert_eq!(events(120, 60), fast::MESSAGES);
        assert_eq!(events(120, 250), 120);
        assert_eq!(events(1, 600), 1);
    }
}
