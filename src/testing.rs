//! Conformance suites and test tools, for this crate's tests and for third parties.
//!
//! An implementation of [`crate::source::Source`] proves itself with [`source::conformance`]; every
//! promise that the core relies on is a case of that suite.

pub mod faults;
pub mod source;
