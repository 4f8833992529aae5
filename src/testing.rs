//! Conformance suites and test tools, for this crate's tests and for third parties.

pub mod sink;
