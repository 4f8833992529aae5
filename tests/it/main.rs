//! The integration tests: one binary, real servers, each started by the tests themselves.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod source_conformance;
mod sqlite;
mod support;
mod support_smoke;
mod tidy;
