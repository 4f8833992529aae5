//! Layers: the file, and environment variables over it, put together by the `config` crate. Each value keeps its
//! place, which that crate carries as a value's origin.

use std::collections::BTreeMap;
use std::fmt;

use config::{ConfigError, Map, Source, Value as Layered, ValueKind};

use super::tree::{Node, ODD, Origin, Table, Value, join};

/// One layer. Without its values in `Debug`: they may be secrets.
#[derive(Clone)]
struct Layer(Map<String, Layered>);

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a layer of {} values", self.0.len())
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Layered>, ConfigError> {
        Ok(self.0.clone())
    }
}

/// `base` with `over` on top of it, which names its keys by their whole path. A value of `base` that stands where
/// a section should be is left alone: that is a mistake of its own.
///
/// # Errors
/// The words of the crate, when it does not take a layer.
pub(super) fn merged(base: Table, over: Vec<(String, Node)>) -> Result<Table, String> {
    let over: Vec<(String, Node)> = over
        .into_iter()
        .filter(|(path, _)| !is_blocked(&base, path))
        .collect();
    // The crate keeps the origins of values, not those of sections.
    let mut sections = BTreeMap::new();
    for (path, node) in &over {
        for (at, _) in path.match_indices('.') {
            let section = path.get(..at).unwrap_or_default().to_owned();
            sections
                .entry(section)
                .or_insert_with(|| node.origin.clone());
        }
    }
    gather(&base, "", &mut sections);
    let base = base.into_iter().map(|(key, node)| (key, layered(node)));
    let over = over.into_iter().map(|(path, node)| (path, layered(node)));
    let built = config::Config::builder()
        .add_source(Layer(base.collect()))
        .add_source(Layer(over.collect()))
        .build()
        .and_then(|built| built.collect())
        .map_err(|error| error.to_string())?;
    Ok(table(built, "", &sections))
}

/// Notes where each section of a tree was written.
fn gather(table: &Table, path: &str, sections: &mut BTreeMap<String, Origin>) {
    for (key, node) in table {
        if let Value::Table(inner) = &node.value {
            let path = join(path, key);
            gather(inner, &path, sections);
            sections.insert(path, node.origin.clone());
        }
    }
}

/// Does a value that is no section stand on the way to this key?
fn is_blocked(table: &Table, path: &str) -> bool {
    let Some((section, rest)) = path.split_once('.') else {
        return false;
    };
    match table.get(section).map(|node| &node.value) {
        Some(Value::Table(inner)) => is_blocked(inner, rest),
        Some(_) => true,
        None => false,
    }
}

fn layered(node: Node) -> Layered {
    let kind = match node.value {
        Value::Text(text) => ValueKind::String(text),
        Value::Whole(number) => ValueKind::I64(number),
        Value::Fraction(number) => ValueKind::Float(number),
        Value::Truth(truth) => ValueKind::Boolean(truth),
        Value::List(items) => ValueKind::Array(items.into_iter().map(layered).collect()),
        Value::Table(table) => {
            let values = table.into_iter().map(|(key, node)| (key, layered(node)));
            ValueKind::Table(values.collect())
        }
        // The one kind that no file brings stands for what no key takes.
        Value::Odd(what) => ValueKind::U128(what as u128),
    };
    Layered::new(Some(&node.origin.to_string()), kind)
}

fn table(values: Map<String, Layered>, path: &str, sections: &BTreeMap<String, Origin>) -> Table {
    let inner = |(key, value): (String, Layered)| {
        let node = node(value, &join(path, &key), sections);
        (key, node)
    };
    values.into_iter().map(inner).collect()
}

fn node(layered: Layered, path: &str, sections: &BTreeMap<String, Origin>) -> Node {
    let mut origin = Origin::told(layered.origin().unwrap_or_default());
    let value = match layered.kind {
        ValueKind::String(text) => Value::Text(text),
        ValueKind::I64(number) => Value::Whole(number),
        ValueKind::Float(number) => Value::Fraction(number),
        ValueKind::Boolean(truth) => Value::Truth(truth),
        ValueKind::Array(items) => {
            let items = items.into_iter().map(|item| node(item, path, sections));
            Value::List(items.collect())
        }
        ValueKind::Table(values) => {
            if let Some(section) = sections.get(path) {
                origin = section.clone();
            }
            Value::Table(table(values, path, sections))
        }
        ValueKind::U128(what) => Value::Odd(usize::try_from(what).unwrap_or(ODD.len())),
        ValueKind::Nil | ValueKind::I128(_) | ValueKind::U64(_) => Value::Odd(ODD.len()),
    };
    Node { value, origin }
}
