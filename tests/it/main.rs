//! The integration tests: one binary, real servers, each started by the tests themselves.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod cli_bin;
mod cli_commands;
mod cli_demo;
mod cli_run;
mod config_load;
mod config_reference;
mod postgres_fixture;
mod postgres_read;
mod sink_lines;
mod sink_nats;
mod source_conformance;
mod support;
mod support_smoke;
mod tidy;
