//! The invariants of ARCHITECTURE.md, checked by reading the source tree.
//!
//! Each check has a name that stands in square brackets in ARCHITECTURE.md as well; a check without its
//! line there, or a line without its check, is itself a failure. A finding says what to do. Code that is
//! justified all the same is allowed here, by path, with the reason beside it.

mod code;
mod paper;
mod tree;

use std::collections::BTreeSet;
use std::fs;

use tree::{File, files, root};

type Check = fn() -> Vec<String>;

/// Name in ARCHITECTURE.md, and the check: its findings, empty when fine.
const CHECKS: &[(&str, Check)] = &[
    ("sqlx", || {
        code::only_in(
            "sqlx",
            // The demo plays the application, which has transactions of its own.
            &["src/source/", "src/outbox", "src/cli/demo"],
            "talk to the Source trait, or put it under src/source/",
        )
    }),
    ("nats", || {
        code::only_in(
            "async_nats",
            &["src/sink/nats"],
            "talk to the Sink trait, or put it under src/sink/nats/",
        )
    }),
    ("axum", || {
        code::only_in("axum", &["src/http"], "HTTP belongs to src/http/")
    }),
    ("clap", || {
        code::only_in(
            "clap",
            &["src/cli", "src/main.rs"],
            "arguments belong to src/cli/",
        )
    }),
    ("instruments", code::instruments),
    ("metric-names", code::metric_names),
    ("global-names", code::global_names),
    ("global-telemetry", code::global_telemetry),
    ("pure", code::pure_modules),
    ("sql", paper::sql_in_files),
    ("environment", code::environment),
    ("panic", paper::panic_abort),
    ("unwrap", code::unwrap_and_print),
    ("unfinished", paper::unfinished),
    ("bounds", code::bounds),
    ("files", paper::file_shape),
    ("sleep", code::sleeps_in_tests),
    ("machine-paths", paper::machine_paths),
    ("crates", paper::crates),
    ("links", paper::links),
];

#[test]
fn the_tree_keeps_its_invariants() {
    let findings: Vec<String> = CHECKS
        .iter()
        .flat_map(|(name, check)| {
            check()
                .into_iter()
                .map(move |finding| format!("[{name}] {finding}"))
        })
        .collect();
    assert!(
        findings.is_empty(),
        "{} findings:\n{}",
        findings.len(),
        findings.join("\n")
    );
}

#[test]
fn every_invariant_is_written_down() {
    let Ok(page) = fs::read_to_string(root().join("ARCHITECTURE.md")) else {
        panic!("ARCHITECTURE.md is missing");
    };
    let written: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("- `[")?.split_once("]`"))
        .map(|(name, _)| name)
        .collect();
    let checked: BTreeSet<&str> = CHECKS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        written, checked,
        "the list in ARCHITECTURE.md (left) and CHECKS (right) differ"
    );
}

/// Rust files of the library and the binary, without test files.
fn sources() -> Vec<File> {
    let mut sources = files("src", ".rs");
    sources.retain(|file| !file.path.ends_with("/tests.rs") && !file.path.contains("/tests/"));
    sources
}

fn is_in(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}
