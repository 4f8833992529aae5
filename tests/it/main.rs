//! The integration tests: one binary, real servers, each started by the tests themselves.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub
)]

mod cases;
mod cli_bin;
mod cli_commands;
mod cli_demo;
mod cli_keys;
mod cli_run;
mod config_canary;
mod config_check;
mod config_effects;
mod config_hostile;
mod config_load;
mod config_reference;
mod config_rotation;
mod config_shown;
mod core;
mod database_work;
mod e2e;
mod measurements;
mod postgres_admin;
mod postgres_conformance;
mod postgres_faults;
mod postgres_fixture;
mod postgres_lease;
mod postgres_measure;
mod postgres_migrate;
mod postgres_read;
mod postgres_settle;
mod postgres_tls;
mod postgres_trail;
mod sink_lines;
mod sink_nats;
mod source_conformance;
mod sqlite;
mod support;
mod support_smoke;
mod tidy;
