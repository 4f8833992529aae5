//! How single values are read: strictly, the same from a file and from the environment.
//!
//! The environment knows only text, so every reader takes text. Beyond that nothing is converted: a
//! password written without quotes would lose its leading zeros, `2.7` attempts would become three.
//! What a reader refuses, it does not repeat where it could be a secret.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use bytesize::ByteSize;
use humantime_serde::re::humantime;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use secrecy::SecretString;
use serde::de::{DeserializeOwned, Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time: `15s`, `1m 30s`, `7d`. A bare number is refused, since nobody can see its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    pub(super) const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }
}

/// As people write it and a file can say it: `90d`, not two months and the rest.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u128, &str); 7] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
            (1, "ns"),
        ];
        let mut rest = self.0.as_nanos();
        if rest == 0 {
            return f.write_str("0s");
        }
        let mut gap = "";
        for (unit, word) in UNITS {
            let (count, left) = (rest / unit, rest % unit);
            if count > 0 {
                write!(f, "{gap}{count}{word}")?;
                gap = " ";
            }
            rest = left;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a length of time with its unit, such as \"15s\" or \"7d\"";
        let text = deserializer.deserialize_any(Quoted { expected })?;
        humantime::parse_duration(text.trim())
            .map(Self)
            .map_err(|_| D::Error::custom(format!("expected {expected}")))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A number of bytes: `32MiB`, `64KiB`, `1GB`, or a bare number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    pub(super) const fn mib(mib: u64) -> Self {
        Self(mib * 1024 * 1024)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS
            .iter()
            .find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit))
        {
            Some((unit, word)) => write!(f, "{}{word}", self.0 / unit),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a size such as \"32MiB\"";
        let text = deserializer.deserialize_any(Whole { expected: EXPECTED })?;
        text.parse::<ByteSize>()
            .map(|size| Self(size.as_u64()))
            .map_err(|_| D::Error::custom(format!("expected {EXPECTED}")))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Text that must never be shown: passwords, tokens, and URLs, which hold passwords too.
#[derive(Clone)]
pub struct Secret(pub SecretString);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

impl Deref for Secret {
    type Target = SecretString;

    fn deref(&self) -> &SecretString {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "text in quotes (the value is not shown here: it may be a secret)";
        let text = deserializer.deserialize_any(Quoted { expected })?;
        Ok(Self(text.into()))
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("[REDACTED]")
    }
}

/// A list of words: `["a", "b"]` in a file, `a,b` in the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct List(pub Vec<String>);

impl Deref for List {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = List;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list such as [\"a\", \"b\"], or \"a,b\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<List, E> {
                let items = text.split(',').map(str::trim).filter(|s| !s.is_empty());
                Ok(List(items.map(str::to_owned).collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element::<String>()? {
                    items.push(item);
                }
                Ok(List(items))
            }
        }
        deserializer.deserialize_any(Items)
    }
}

/// A whole number.
pub(super) fn number<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr,
{
    const EXPECTED: &str = "a whole number that is neither negative nor too large";
    let text = deserializer.deserialize_any(Whole { expected: EXPECTED })?;
    text.parse()
        .map_err(|_| D::Error::custom(format!("expected {EXPECTED}")))
}

/// A whole number that may be absent.
pub(super) fn some_number<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr,
{
    number(deserializer).map(Some)
}

/// `true` or `false`.
pub(super) fn boolean<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct Truth;
    impl Visitor<'_> for Truth {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true or false")
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
            match text.trim().to_ascii_lowercase().as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(E::custom("expected true or false")),
            }
        }
    }
    deserializer.deserialize_any(Truth)
}

/// `true` or `false`, that may be absent.
pub(super) fn some_boolean<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<bool>, D::Error> {
    boolean(deserializer).map(Some)
}

/// A word from a closed set: `T`'s own derived names.
pub(super) fn word<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let text = deserializer.deserialize_any(Quoted {
        expected: "a word in quotes",
    })?;
    let words: serde::de::value::StrDeserializer<'_, D::Error> = text.as_str().into_deserializer();
    T::deserialize(words)
}

/// A word from a closed set that may be absent.
pub(super) fn some_word<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    word(deserializer).map(Some)
}

/// Text, and nothing that would have to be turned into text. Does not repeat what it refuses.
struct Quoted {
    expected: &'static str,
}

impl Quoted {
    fn refuse<E: Error>(&self, what: &str) -> E {
        E::custom(format!("expected {}, found {what}", self.expected))
    }
}

impl<'de> Visitor<'de> for Quoted {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<String, E> {
        Err(self.refuse("true or false without quotes"))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<String, E> {
        Err(self.refuse("a bare number"))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<String, E> {
        Err(self.refuse("a bare number"))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<String, E> {
        Err(self.refuse("a bare number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<String, A::Error> {
        Err(self.refuse("a list"))
    }
}

/// A whole number, from a file or as text, handed on as text.
struct Whole {
    expected: &'static str,
}

impl Visitor<'_> for Whole {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.trim().to_owned())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<String, E> {
        Err(E::custom(format!("expected {}", self.expected)))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<String, E> {
        Err(E::custom(format!(
            "expected {}, found a number with a fraction",
            self.expected
        )))
    }
}

/// How a value is written, for the schema.
macro_rules! written {
    ($type:ty, $name:literal, $schema:tt) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

written!(Span, "Span", {
    "type": "string",
    "x-unit": "a length of time with its unit",
    "examples": ["250ms", "15s", "1h 30m", "7d"]
});
written!(Size, "Size", {
    "type": ["string", "integer"],
    "minimum": 0,
    "x-unit": "bytes, or a size with its unit",
    "examples": ["64KiB", "32MiB"]
});
written!(Secret, "Secret", { "type": "string", "writeOnly": true });
written!(List, "List", {
    "type": ["array", "string"],
    "items": { "type": "string" },
    "examples": [["a", "b"], "a,b"]
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_shown_as_it_is_written_and_can_be_read_again() {
        for (span, shown) in [
            (Duration::ZERO, "0s"),
            (Duration::from_secs(90 * 86_400), "90d"),
            (Duration::from_secs(5_400), "1h 30m"),
            (Duration::from_millis(256_250), "4m 16s 250ms"),
            (Duration::new(0, 1_001), "1us 1ns"),
        ] {
            assert_eq!(Span(span).to_string(), shown);
            assert_eq!(humantime::parse_duration(shown), Ok(span));
        }
    }
}
