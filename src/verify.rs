//! Does a sink hold what the database says it was given?
//!
//! [`feed`] reads, for one database and one sink, what the database remembers of a window of time ([`Admin::trail`])
//! and then what the sink holds ([`Sink::trail`]), and tells what does not fit: events that are missing from the sink,
//! events that the database knows nothing of, copies, and events before an earlier one of their key.
//!
//! **It makes no false report of a relay at work.** The database is read before the sink: what it vouches for was stored
//! earlier still. What looks wrong is looked at again: a message without a receipt is looked up in the outbox, the
//! history and the discarded events as of one moment, after it was read; what is missing is looked for in the older
//! part of the sink too. Nothing depends on the clocks of the two being equal within [`SLACK`].
//!
//! [`audit`] holds the comparison, without I/O; what is kept of an event is its id and two numbers, at most
//! [`MOST_EVENTS`] of them.
//!
//! [`Admin::trail`]: crate::source::admin::Admin::trail
//! [`Sink::trail`]: crate::sink::Sink::trail

use std::time::Duration;

pub mod audit;
mod feed;
mod report;

pub use feed::{Error, Feed, feed};
pub use report::{Finding, Offender, Report, SHOWN};

/// By how much the clocks of database, sink and this machine may differ, and how long a settlement may take.
pub const SLACK: Duration = Duration::from_secs(15 * 60);

/// Most events of a window; 60 bytes of memory each, or 150 where the database knows few of them.
pub const MOST_EVENTS: usize = 20_000_000;
