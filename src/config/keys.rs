//! The keys there are, taken from the structs themselves, and the nearest one to a key there is not.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};

use super::tree::{Table, Value, join};
use super::{
    Config, Database, Http, Lease, Log, Retention, Retry, Route, RouteRetry, Shutdown, Sink,
};

/// Every key of the file, names of databases, sinks and routes written as `*`.
pub fn known_keys() -> Vec<String> {
    let mut keys = Vec::new();
    collect("", &mut keys);
    keys
}

fn collect(pattern: &str, keys: &mut Vec<String>) {
    for field in fields(pattern).unwrap_or_default() {
        let path = join(pattern, field);
        if NAMED.contains(&path.as_str()) {
            collect(&join(&path, "*"), keys);
        } else if fields(&path).is_some() {
            collect(&path, keys);
        } else {
            keys.push(path);
        }
    }
}

/// Sections whose keys are names that the operator gives.
pub(super) const NAMED: [&str; 3] = ["databases", "sinks", "routes"];

/// The keys of a section, by its path with names as `*`; `None` when the path is no section.
fn fields(pattern: &str) -> Option<&'static [&'static str]> {
    Some(match pattern {
        "" => fields_of::<Config>(),
        "databases.*" => fields_of::<Database>(),
        "sinks.*" => fields_of::<Sink>(),
        "routes.*" => fields_of::<Route>(),
        "routes.*.retry" => fields_of::<RouteRetry>(),
        "retry" => fields_of::<Retry>(),
        "lease" => fields_of::<Lease>(),
        "retention" => fields_of::<Retention>(),
        "http" => fields_of::<Http>(),
        "shutdown" => fields_of::<Shutdown>(),
        "log" => fields_of::<Log>(),
        _ => return None,
    })
}

/// The section that a path belongs to: `retry`, or with its name, `sinks.events`.
pub(super) fn section_of(path: &[&str]) -> String {
    let depth = match path {
        [first, ..] if NAMED.contains(first) => 2,
        _ => 1,
    };
    path[..depth.min(path.len())].join(".")
}

/// Finds what does not belong into the tree: unknown keys, bad names, a table where a value belongs and
/// the other way round. The path and one sentence each.
pub(super) fn misplaced(tree: &Table) -> Vec<(Vec<String>, String)> {
    let mut problems = Vec::new();
    walk(tree, &[], "", &mut problems);
    problems
}

fn walk(table: &Table, above: &[String], pattern: &str, problems: &mut Vec<(Vec<String>, String)>) {
    let named = NAMED.contains(&pattern);
    for (key, node) in table {
        let mut path = above.to_vec();
        path.push(key.clone());
        let shown = path.join(".").escape_debug().to_string();
        let pattern = join(pattern, if named { "*" } else { key });
        // A key with a dot or a star in it could look like a path.
        let plain = !key.contains(['.', '*']);
        let is_section = plain && (fields(&pattern).is_some() || NAMED.contains(&pattern.as_str()));
        let is_table = matches!(node.value, Value::Table(_));
        let words = if named && !is_name(key) {
            "a name consists of a-z, 0-9, `_` and `-`, without a double underscore".to_owned()
        } else if is_section {
            if let Value::Table(inner) = &node.value {
                walk(inner, &path, &pattern, problems);
                continue;
            }
            "this is a section of its own, not a value".to_owned()
        } else if !plain || !known_keys().contains(&pattern) {
            format!("there is no such key{}", hint(&shown, &pattern))
        } else if is_table {
            "this is a value, not a section".to_owned()
        } else {
            continue;
        };
        problems.push((path, format!("`{shown}` ({}): {words}", node.origin)));
    }
}

/// Is this a name that the file and the environment can both write?
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains("__")
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}

/// Words that lead from an unknown key to the one that was meant, if any.
fn hint(path: &str, pattern: &str) -> String {
    let (section, key) = pattern.rsplit_once('.').unwrap_or(("", pattern));
    let siblings = fields(section).unwrap_or_default();
    if let Some(near) = nearest(key, siblings.iter().copied()) {
        let (section, _) = path.rsplit_once('.').unwrap_or(("", path));
        return format!("; did you mean `{}`?", join(section, near));
    }
    // The right key in the wrong section.
    let elsewhere: Vec<String> = known_keys()
        .into_iter()
        .filter(|known| known.rsplit('.').next() == Some(key))
        .map(|known| format!("`{}`", known.replace('*', "NAME")))
        .collect();
    match elsewhere.as_slice() {
        [] if section.is_empty() => format!("; the sections are {}", siblings.join(", ")),
        [] => String::new(),
        places => format!("; it belongs to {}", places.join(" or ")),
    }
}

/// The candidate that differs by at most two slips, or only in underscores and hyphens.
fn nearest<'a>(key: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.replace(['_', '-'], "").to_ascii_lowercase();
    let wanted = plain(key);
    candidates
        .map(|candidate| {
            let distance = strsim::damerau_levenshtein(&wanted, &plain(candidate));
            (distance, candidate)
        })
        .filter(|(distance, candidate)| *distance <= 2 && *distance < candidate.len() / 2)
        .min()
        .map(|(_, candidate)| candidate)
}

/// What a variable with one underscore too few was meant to be: `OUTBOXD_RETRY_MAX_ATTEMPTS` for
/// `OUTBOXD__RETRY__MAX_ATTEMPTS`. `rest` is what follows `OUTBOXD_`.
pub(super) fn meant_by(rest: &str) -> Option<String> {
    let words: Vec<String> = rest
        .split('_')
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    let wanted = words.concat();
    known_keys()
        .into_iter()
        .find_map(|known| match known.split_once(".*.") {
            None => (known.replace(['.', '_'], "") == wanted).then(|| known.clone()),
            Some((section, key)) => {
                let tail = wanted.strip_prefix(section)?;
                let name = tail.strip_suffix(&key.replace(['.', '_'], ""))?;
                (!name.is_empty()).then(|| format!("{section}.{name}.{key}"))
            }
        })
}

/// Sections, for a message about a variable that starts like one.
pub(super) fn is_section(word: &str) -> bool {
    fields("")
        .unwrap_or_default()
        .contains(&word.to_ascii_lowercase().as_str())
}

/// The field names that serde's derive gave `T`, without a second list of them to keep in step.
fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Probe<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Probe<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(Self::Error::custom("not a struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            Err(Self::Error::custom("seen enough"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut fields: &'static [&'static str] = &[];
    // The probe always answers with an error; what counts is what it saw.
    let _ = <T as Deserialize>::deserialize(Probe(&mut fields));
    fields
}
