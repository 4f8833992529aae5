//! Checks of Rust code: who names what.

use super::tree::{files, names};
use super::{is_in, sources};

/// Every line of code outside `places` in which one of `words` stands as a word.
pub(super) fn find(words: &[&str], places: &[&str], advice: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for file in sources().iter().filter(|file| !is_in(&file.path, places)) {
        for (number, line) in file.code() {
            for word in words.iter().filter(|word| names(&line, word)) {
                findings.push(format!("{}:{number}: `{word}`; {advice}", file.path));
            }
        }
    }
    findings
}

pub(super) fn only_in(word: &str, places: &[&str], advice: &str) -> Vec<String> {
    find(&[word], places, advice)
}

pub(super) fn instruments() -> Vec<String> {
    let makers = [
        "u64_counter",
        "f64_counter",
        "i64_up_down_counter",
        "f64_up_down_counter",
        "u64_gauge",
        "i64_gauge",
        "f64_gauge",
        "u64_histogram",
        "f64_histogram",
        "u64_observable_counter",
        "f64_observable_counter",
        "u64_observable_gauge",
        "i64_observable_gauge",
        "f64_observable_gauge",
    ];
    find(
        &makers,
        &["src/telemetry"],
        "declare the instrument in src/telemetry.rs and call a method of Telemetry",
    )
}

pub(super) fn metric_names() -> Vec<String> {
    let mut findings = Vec::new();
    for file in sources()
        .iter()
        .filter(|file| !is_in(&file.path, &["src/telemetry"]))
    {
        for (number, line) in file.code_and_strings() {
            if line.contains("\"event.outbox.") || line.contains("\"event_outbox_") {
                findings.push(format!(
                    "{}:{number}: a metric's name; it belongs to src/telemetry.rs",
                    file.path
                ));
            }
        }
    }
    findings
}

pub(super) fn global_names() -> Vec<String> {
    let mut findings = find(
        &[
            "where_is",
            "where_is_pid",
            "registry::registered",
            "ractor::pg",
            "ractor::registry",
        ],
        &[],
        "names are global to the process and two relays may live in it; keep the ActorRef",
    );
    for file in sources() {
        let code: String = file.code().into_iter().map(|(_, line)| line).collect();
        let code: String = code.chars().filter(|c| !c.is_whitespace()).collect();
        for call in [
            "spawn(Some(",
            "spawn_linked(Some(",
            "spawn_instant(Some(",
            "spawn_linked_instant(Some(",
        ] {
            if code.contains(&format!("::{call}")) {
                findings.push(format!("{}: an actor with a name; pass None", file.path));
            }
        }
    }
    findings
}

pub(super) fn global_telemetry() -> Vec<String> {
    find(
        &[
            "opentelemetry::global",
            "global::meter",
            "set_meter_provider",
            "set_global_default",
        ],
        &["src/cli", "src/main.rs"],
        "an embedder owns the process's globals; take a Meter as an argument",
    )
}

pub(super) fn pure_modules() -> Vec<String> {
    let pure = [
        "src/actor/claimer/budget.rs",
        "src/actor/claimer/cursor.rs",
        "src/actor/claimer/gaps.rs",
        "src/actor/claimer/history.rs",
        "src/actor/claimer/parked.rs",
        "src/actor/claimer/shares.rs",
        "src/actor/sequencer/run.rs",
        "src/actor/publisher/gate.rs",
        "src/actor/settler/batch.rs",
        "src/actor/restart.rs",
        "src/retry.rs",
        "src/route.rs",
        "src/verify/audit.rs",
        "src/verify/audit/fate.rs",
        "src/verify/audit/second_look.rs",
        "src/verify/report.rs",
    ];
    let impure = [
        "async",
        "await",
        "tokio",
        "ractor",
        "Instant::now",
        "SystemTime",
        "rand",
        "Uuid::new_v4",
        "Uuid::now_v7",
        "std::fs",
        "std::net",
        "sqlx",
        "thread",
    ];
    let mut findings = Vec::new();
    for file in sources()
        .iter()
        .filter(|file| pure.contains(&file.path.as_str()))
    {
        for (number, line) in file.code() {
            for word in impure.iter().filter(|word| names(&line, word)) {
                findings.push(format!(
                    "{}:{number}: `{word}` in a pure module; take time, jitter and results as arguments",
                    file.path
                ));
            }
        }
    }
    findings
}

pub(super) fn environment() -> Vec<String> {
    let mut findings = find(
        &[
            "env::var",
            "env::vars",
            "env::var_os",
            "env::args",
            "process::exit",
        ],
        &["src/cli", "src/config", "src/logging", "src/main.rs"],
        "a library reads no environment and ends no process; take the value as an argument",
    );
    // That is what a fail point is for, in builds for tests.
    findings.extend(find(
        &["process::abort"],
        &["src/testing/fail_points/"],
        "a library ends no process; return an error",
    ));
    findings
}

pub(super) fn unwrap_and_print() -> Vec<String> {
    let mut findings = find(
        // What is asserted in the conformance suites is their purpose.
        &[".unwrap()", ".unwrap_err()"],
        &["src/testing"],
        "return an error, or `expect` with the reason why it cannot fail",
    );
    findings.extend(find(
        &["println!", "eprintln!", "print!", "eprint!", "dbg!"],
        &["src/cli", "src/main.rs"],
        "output belongs to src/cli/, everything else is tracing",
    ));
    findings
}

pub(super) fn bounds() -> Vec<String> {
    find(
        &[
            "unbounded_channel",
            "mpsc::unbounded",
            "UnboundedSender",
            "UnboundedReceiver",
            "send_interval",
            "OutputPort",
        ],
        &[],
        "everything has a bound; use a bounded channel or a permit, and send_after instead of an interval",
    )
}

pub(super) fn sleeps_in_tests() -> Vec<String> {
    let mut findings = Vec::new();
    for file in files("tests", ".rs")
        .iter()
        .filter(|file| !is_in(&file.path, &["tests/it/support/"]))
    {
        let lines: Vec<&str> = file.text.lines().collect();
        for (number, line) in file.code() {
            let said = |line: &str| line.contains("//");
            let before = number
                .checked_sub(2)
                .is_some_and(|index| said(lines[index]));
            if names(&line, "sleep(")
                && !line.contains("fn sleep(")
                && !before
                && !said(lines[number - 1])
            {
                findings.push(format!(
                    "{}:{number}: a sleep; wait with support::eventually, or say in a comment above why time \
                     itself is what the test is about",
                    file.path
                ));
            }
        }
    }
    findings
}
