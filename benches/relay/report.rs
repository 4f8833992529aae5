//! Figures as tables: for the terminal and for the page alike.

use std::fmt::Write;

use crate::arguments::Arguments;
use crate::measurement::{Group, Results};
use crate::stage::{CONDITIONS, Stage};

/// What the figures were measured on, in one sentence.
pub async fn conditions(arguments: &Arguments, stage: &Stage) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let build = if cfg!(debug_assertions) {
        "; NOT A RELEASE BUILD, these figures mean nothing"
    } else {
        ""
    };
    format!(
        "{} rounds, backlogs of {} events of 1 KiB; {cores} cores, {model}, shared by all; {}; fsync {}, {CONDITIONS}{build}",
        arguments.rounds,
        grouped(&arguments.events.to_string()),
        stage.versions().await,
        if arguments.no_fsync { "OFF" } else { "on" },
    )
}

/// A group's table, and its goals; nothing if none of it was measured.
pub fn table(group: &Group, results: &Results) -> Option<String> {
    let lines: Vec<_> = group
        .lines
        .iter()
        .filter(|line| results.has(&line.name))
        .collect();
    if lines.is_empty() {
        return None;
    }
    let cell = |line: &crate::measurement::Line, column: &crate::measurement::Column| {
        let base = line.against.first().map(String::as_str);
        results
            .median(&line.name, base, column.value)
            .map_or_else(String::new, |value| number(value, column.decimals))
    };
    // A column in which nothing stands is left out.
    let columns: Vec<_> = group
        .columns
        .iter()
        .filter(|column| lines.iter().any(|line| !cell(line, column).is_empty()))
        .collect();
    let remarks = lines
        .iter()
        .any(|line| results.remark(&line.name).is_some());
    let mut text = String::from("| |");
    for column in &columns {
        write!(text, " {} |", column.title).unwrap();
    }
    text.push_str(if remarks { " |\n|---|" } else { "\n|---|" });
    text.push_str(&"--:|".repeat(columns.len()));
    text.push_str(if remarks { "---|\n" } else { "\n" });
    for line in &lines {
        write!(text, "| {} |", line.name).unwrap();
        for column in &columns {
            write!(text, " {} |", cell(line, column)).unwrap();
        }
        if remarks {
            let remark = results.remark(&line.name).unwrap_or_default();
            write!(text, " {remark} |").unwrap();
        }
        text.push('\n');
    }
    text.push_str(&goals(group, results));
    Some(text)
}

/// What should have come out beside what did.
fn goals(group: &Group, results: &Results) -> String {
    let mut text = String::new();
    for goal in &group.goals {
        let line = group.lines.iter().find(|line| line.name == goal.line);
        let base = line
            .and_then(|line| line.against.first())
            .map(String::as_str);
        let Some(value) = results.median(goal.line, base, goal.value) else {
            continue;
        };
        let verdict = if goal.bound.holds(value) {
            "met"
        } else {
            "**missed**"
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {verdict} |",
            goal.line,
            goal.words,
            goal.bound,
            number(value, 2)
        )
        .unwrap();
    }
    if text.is_empty() {
        return text;
    }
    format!("\n| goal | | wanted | measured | |\n|---|---|---|--:|---|\n{text}")
}

fn number(value: f64, decimals: usize) -> String {
    if value.is_nan() {
        return String::new();
    }
    grouped(&format!("{value:.decimals$}"))
}

/// With commas between thousands.
pub fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_once('.').map_or((number, ""), |parts| parts);
    let (sign, digits) = whole
        .strip_prefix('-')
        .map_or(("", whole), |digits| ("-", digits));
    let mut text = String::from(sign);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if !rest.is_empty() {
        text.push('.');
        text.push_str(rest);
    }
    text
}
