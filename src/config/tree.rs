//! The configuration as it was written: a tree whose every value knows its place.
//!
//! Nothing is converted here; how a value is read is the business of `value`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// A section.
pub(super) type Table = BTreeMap<String, Node>;

/// A value and its place.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// What stands there. Without `Debug`: it may be a secret.
#[derive(Clone)]
pub(super) enum Value {
    Text(String),
    Whole(i64),
    Fraction(f64),
    Truth(bool),
    List(Vec<Node>),
    Table(Table),
    /// Something that no key takes: which of [`ODD`].
    Odd(usize),
}

/// What no key takes, in words.
pub(super) const ODD: [&str; 3] = [
    "a number that large",
    "a number like this",
    "a date or a time without quotes",
];

/// Where a value was written, in words.
#[derive(Debug, Clone)]
pub(super) struct Origin(Arc<str>);

impl Origin {
    /// In this line of a file.
    pub(super) fn line(file: &str, line: usize) -> Self {
        Self(format!("{file}:{line}").into())
    }

    /// In an environment variable.
    pub(super) fn variable(name: &str) -> Self {
        Self(format!("environment variable {name}").into())
    }

    /// As these words say.
    pub(super) fn told(words: &str) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Every given key and section with its place.
pub(super) fn origins(table: &Table) -> BTreeMap<String, String> {
    fn collect(table: &Table, path: &str, given: &mut BTreeMap<String, String>) {
        for (key, node) in table {
            let path = join(path, key);
            if let Value::Table(inner) = &node.value {
                collect(inner, &path, given);
            }
            given.insert(path, node.origin.to_string());
        }
    }
    let mut given = BTreeMap::new();
    collect(table, "", &mut given);
    given
}

/// Takes a value out; false when there is none.
pub(super) fn remove(table: &mut Table, path: &[&str]) -> bool {
    match path {
        [] => false,
        [key] => table.remove(*key).is_some(),
        [key, rest @ ..] => match table.get_mut(*key).map(|node| &mut node.value) {
            Some(Value::Table(inner)) => remove(inner, rest),
            _ => false,
        },
    }
}

/// A key below a section.
pub(super) fn join(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
    }
}

fn odd(what: usize) -> &'static str {
    ODD.get(what).copied().unwrap_or("this")
}

impl Value {
    fn what(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Whole(_) => "a bare number",
            Self::Fraction(_) => "a number with a fraction",
            Self::Truth(_) => "true or false without quotes",
            Self::List(_) => "a list",
            Self::Table(_) => "a section",
            Self::Odd(what) => odd(*what),
        }
    }
}

impl<'de> IntoDeserializer<'de, Error> for Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Node {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Text(text) => visitor.visit_string(text),
            Value::Whole(number) => visitor.visit_i64(number),
            Value::Fraction(number) => visitor.visit_f64(number),
            Value::Truth(truth) => visitor.visit_bool(truth),
            Value::List(items) => visitor.visit_seq(SeqDeserializer::new(items.into_iter())),
            Value::Table(table) => visitor.visit_map(MapDeserializer::new(table.into_iter())),
            Value::Odd(what) => Err(Error::custom(format!("no key takes {}", odd(what)))),
        }
    }

    /// Serde's own refusal would repeat the value.
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Text(text) => visitor.visit_string(text),
            other => Err(Error::custom(format!(
                "expected text in quotes, found {}",
                other.what()
            ))),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}
