//! The configuration file: TOML into a tree, with the line of every value.

use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::tree::{Node, Origin, Table, Value};

/// A configuration is text that people write: what is larger is something else.
const LARGEST: u64 = 1024 * 1024;

/// Reads a file.
///
/// # Errors
/// It cannot be read, or everything that is no TOML in it, one sentence each. Never the text of a line,
/// which may hold a secret.
pub(super) fn read(path: &Path) -> Result<Table, Vec<String>> {
    let shown = path.display();
    let bytes = crate::files::bounded(path, LARGEST)
        .map_err(|error| vec![format!("cannot read {shown}: {error}")])?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = Lines::of(&error.as_bytes()[..valid]).at(valid);
        vec![format!("{shown}:{line}: not UTF-8")]
    })?;
    parse(&shown.to_string(), &text)
}

fn parse(file: &str, text: &str) -> Result<Table, Vec<String>> {
    // Some editors begin a file with a mark that is no text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = Lines::of(text.as_bytes());
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let place = Place {
            file: file.into(),
            lines,
        };
        return Ok(place.table(table.get_ref()));
    }
    let mut problems: Vec<(usize, String)> = errors
        .iter()
        .map(|error| {
            let line = error.span().map_or(1, |span| lines.at(span.start));
            (line, format!("{file}:{line}: {}", error.message()))
        })
        .collect();
    problems.sort_by_key(|(line, _)| *line);
    // The first mistake of a line is the one that counts.
    problems.dedup_by_key(|(line, _)| *line);
    Err(problems.into_iter().map(|(_, words)| words).collect())
}

/// Where the lines begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &[u8]) -> Self {
        let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        Self(
            std::iter::once(0)
                .chain(ends.map(|(at, _)| at + 1))
                .collect(),
        )
    }

    /// The line of a position, from 1.
    fn at(&self, position: usize) -> usize {
        self.0.partition_point(|start| *start <= position)
    }
}

struct Place {
    file: Arc<str>,
    lines: Lines,
}

impl Place {
    fn table(&self, table: &DeTable<'_>) -> Table {
        table
            .iter()
            .map(|(key, value)| {
                // The line of the key: a long value may end far below.
                let node = self.node(value.get_ref(), key.span().start);
                (key.get_ref().clone().into_owned(), node)
            })
            .collect()
    }

    fn node(&self, value: &DeValue<'_>, at: usize) -> Node {
        let value = match value {
            DeValue::String(text) => Value::Text(text.clone().into_owned()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or(Value::Odd(0), Value::Whole),
            DeValue::Float(number) => number
                .as_str()
                .parse()
                .map_or(Value::Odd(1), Value::Fraction),
            DeValue::Boolean(truth) => Value::Truth(*truth),
            DeValue::Datetime(_) => Value::Odd(2),
            DeValue::Array(items) => {
                let item = |item: &toml::Spanned<DeValue<'_>>| {
                    self.node(item.get_ref(), item.span().start)
                };
                Value::List(items.iter().map(item).collect())
            }
            DeValue::Table(table) => Value::Table(self.table(table)),
        };
        Node {
            value,
            origin: Origin::line(&self.file, self.lines.at(at)),
        }
    }
}
