//! What third parties need to prove their own sources and sinks: conformance suites and fault injection; and fail
//! points, for our own.
//!
//! An implementation of [`crate::source::Source`] or [`crate::sink::Sink`] proves itself with the suite of its
//! trait; every promise that the core relies on is a case of that suite.

pub mod fail_points;
pub mod faults;
pub mod sink;
pub mod source;
