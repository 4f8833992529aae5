//! Checks of files: their shape, SQL, paths, dependencies, links.

use std::collections::BTreeSet;
use std::fs;

use super::code::find;
use super::tree::{File, files, names, root};
use super::{is_in, sources};

pub(super) fn sql_in_files() -> Vec<String> {
    let mut findings = Vec::new();
    for directory in ["src", "migrations"] {
        for file in files(directory, ".sql") {
            if !file.text.trim_start().starts_with("--") {
                findings.push(format!(
                    "{}: begin with a comment: what it guarantees, and which index serves it",
                    file.path
                ));
            }
        }
    }
    for file in sources()
        .iter()
        .filter(|file| is_in(&file.path, &["src/source", "src/outbox"]))
    {
        for (number, line) in file.code_and_strings() {
            let line = line.to_lowercase();
            for start in [
                "\"select ",
                "\"insert into ",
                "\"update ",
                "\"delete from ",
                "\"with ",
                "\"create table ",
            ] {
                if line.contains(start) && !line.contains("\"select 1\"") {
                    findings.push(format!(
                        "{}:{number}: SQL in Rust; put it into a .sql file beside",
                        file.path
                    ));
                }
            }
        }
    }
    findings
}

pub(super) fn panic_abort() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    manifest
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with('#'))
        .filter(|(_, line)| line.contains("panic") && line.contains("abort"))
        .map(|(index, _)| {
            format!(
                "Cargo.toml:{}: panic = \"abort\" takes supervision away; remove it",
                index + 1
            )
        })
        .collect()
}

pub(super) fn unfinished() -> Vec<String> {
    let mut findings = find(
        &["todo!", "unimplemented!"],
        &[],
        "finish it, or leave it out",
    );
    let marks = ["TODO", "FIXME", "XXX", "HACK"];
    for file in sources()
        .iter()
        .chain(&files("src", ".sql"))
        .chain(&files("migrations", ".sql"))
    {
        for (index, line) in file.text.lines().enumerate() {
            for mark in marks.iter().filter(|mark| names(line, mark)) {
                findings.push(format!(
                    "{}:{}: {mark}; finish it, or say what is true today",
                    file.path,
                    index + 1
                ));
            }
        }
    }
    findings
}

pub(super) fn file_shape() -> Vec<String> {
    const LONGEST: usize = 500;
    let mut findings = Vec::new();
    for directory in ["src", "tests", "benches", "examples"] {
        for file in files(directory, ".rs") {
            let lines = file.text.lines().count();
            if lines >= LONGEST {
                findings.push(format!(
                    "{}: {lines} lines; split it by responsibility",
                    file.path
                ));
            }
            if !file.text.starts_with("//!") {
                findings.push(format!(
                    "{}: begin with a `//!` that says what the file is for",
                    file.path
                ));
            }
            let stem = file
                .path
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .trim_end_matches(".rs");
            if [
                "utils", "util", "common", "manager", "helper", "helpers", "misc",
            ]
            .contains(&stem)
            {
                findings.push(format!(
                    "{}: name the file after what it is responsible for",
                    file.path
                ));
            }
        }
    }
    findings
}

pub(super) fn machine_paths() -> Vec<String> {
    // In pieces, so that this file is not a finding.
    let starts = ["home", "root", "work", "Users"].map(|directory| format!("/{directory}/"));
    let mut findings = Vec::new();
    let endings = [
        ".rs", ".toml", ".sql", ".md", ".sh", ".yml", ".yaml", ".json",
    ];
    let mut all: Vec<File> = endings
        .iter()
        .flat_map(|ending| files("", ending))
        .collect();
    all.extend(files("scripts", "").into_iter().chain(files(".ci", "")));
    for file in all {
        for (index, line) in file.text.lines().enumerate() {
            let is_path = |start: &String| {
                line.match_indices(start.as_str()).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "./_-}*".contains(c))
                })
            };
            if starts.iter().any(is_path) {
                findings.push(format!(
                    "{}:{}: a path of one machine; make it relative",
                    file.path,
                    index + 1
                ));
            }
        }
    }
    findings
}

pub(super) fn crates() -> Vec<String> {
    let root = root();
    let rules: String = fs::read_to_string(root.join("deny.toml")).unwrap_or_default();
    let banned: BTreeSet<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("{ crate = \"")?.split_once('"'))
        .map(|(name, _)| name)
        .collect();
    let mut findings = Vec::new();
    if banned.is_empty() {
        findings
            .push("deny.toml: no `{ crate = \"…\" }` lines found; keep one ban a line".to_owned());
    }
    for line in fs::read_to_string(root.join("Cargo.lock"))
        .unwrap_or_default()
        .lines()
    {
        if let Some(name) = line
            .strip_prefix("name = \"")
            .and_then(|rest| rest.strip_suffix('"'))
            && banned.contains(name)
        {
            findings.push(format!(
                "Cargo.lock: {name} is banned, see deny.toml; turn off the feature that brings it"
            ));
        }
        if line.starts_with("source = ")
            && !line.contains("registry+https://github.com/rust-lang/crates.io-index")
        {
            findings.push(format!("Cargo.lock: {line}; only crates.io is a source"));
        }
    }
    findings
}

pub(super) fn links() -> Vec<String> {
    let root = root();
    let mut findings = Vec::new();
    for file in files("", ".md") {
        let directory = root
            .join(&file.path)
            .parent()
            .map(ToOwned::to_owned)
            .unwrap_or_default();
        for (index, line) in file.text.lines().enumerate() {
            for target in line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next())
            {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                let page = if path.is_empty() {
                    root.join(&file.path)
                } else {
                    directory.join(path)
                };
                let place = format!("{}:{}: the link to {target}", file.path, index + 1);
                if !page.exists() {
                    findings.push(format!("{place} leads nowhere"));
                } else if !anchor.is_empty() && !headings(&page).contains(anchor) {
                    findings.push(format!("{place} names no heading there"));
                }
            }
        }
    }
    findings
}

/// A page's headings as anchors: lower case, punctuation gone, spaces as hyphens.
fn headings(page: &std::path::Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap_or_default();
    let slug = |title: &str| -> String {
        let kept = title.trim().to_lowercase();
        let kept = kept
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| slug(line.trim_start_matches('#')))
        .collect()
}
