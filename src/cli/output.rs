//! Standard output for data, standard error for words; a reader that went away is no failure.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use super::failure::Failure;

/// Says something to the person at the terminal.
pub(super) fn say(words: fmt::Arguments<'_>) {
    // Nobody can be told that standard error is gone.
    let _ = writeln!(io::stderr().lock(), "{words}");
}

/// Where results go.
#[derive(Debug)]
pub(super) struct Output {
    json: bool,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Is the result for a program?
    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Writes `value` as JSON, or what `words` makes of it.
    pub(super) fn write<T: Serialize>(
        &self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let mut text = if self.json {
            serde_json::to_string_pretty(value)
                .map_err(|error| Failure::failed(format!("cannot write the result: {error}")))?
        } else {
            words(value)
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        print(&text)
    }
}

/// Writes text to standard output. A closed pipe (`| head`) means that the reader has enough.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}

/// A table for people: columns as wide as their longest cell, the last one as long as it is.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let mut line = String::new();
        for (index, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let last = index + 1 == cells.len();
            line.push_str(cell);
            if !last {
                let gap = width - cell.chars().count() + 2;
                line.extend(std::iter::repeat_n(' ', gap));
            }
        }
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(head.to_vec());
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

/// Text from outside without what would steer the terminal.
pub(super) fn safe(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A line about events that stay.
pub(super) fn no_route(database: &str, kind: &str) -> String {
    let kind = safe(kind);
    format!("{database}: events of kind `{kind}` stay: no route takes them\n")
}

/// A length of time for people: `3.2 s`, `5 m 10 s`, `2 h 5 m`, `3 d 4 h`.
pub(super) fn age(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3_600 => format!("{} m {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} m", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_and_ages_read_well() {
        let rows = [vec!["a".into(), "long cell".into(), "x".into()]];
        let text = table(&["NAME", "B", "C"], &rows);
        assert_eq!(text, "NAME  B          C\na     long cell  x\n");
        let ages = [0.25, 75.0, 7_500.0, 200_000.0].map(age);
        assert_eq!(ages, ["0.2 s", "1 m 15 s", "2 h 5 m", "2 d 7 h"]);
        assert_eq!(safe("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }
}
