//! The integration tests: one binary, real servers, each started by the tests themselves.
#![allow(clippy::unwrap_used)]

mod source_conformance;
