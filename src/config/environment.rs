//! Environment variables: keys that go before the file, and names that were meant as keys.

use std::ffi::OsString;

use super::keys;
use super::load::{ENV_PREFIX, FILE_VARIABLE};
use super::tree::{Node, Origin, Value};

/// Our variables, sorted into keys and remarks.
#[derive(Default)]
pub(super) struct Environment {
    values: Vec<Variable>,
    /// What has no meaning and does no harm, one sentence each.
    pub(super) warnings: Vec<String>,
    /// What cannot be meant, one sentence each.
    pub(super) problems: Vec<String>,
}

struct Variable {
    /// The key, with dots.
    key: String,
    name: String,
    value: String,
}

impl Environment {
    pub(super) fn of(variables: &[(OsString, OsString)]) -> Self {
        let mut found = Self::default();
        for (name, value) in variables {
            let shown = name.to_string_lossy().into_owned();
            let upper = shown.to_ascii_uppercase();
            if let Some(rest) = upper.strip_prefix(ENV_PREFIX) {
                found.key(shown, rest, value);
            } else if let Some(rest) = upper.strip_prefix("OUTBOXD_") {
                found.stray(&shown, rest);
            }
        }
        found
            .values
            .sort_by(|a, b| (&a.key, &a.name).cmp(&(&b.key, &b.name)));
        for pair in found.values.windows(2) {
            if pair[0].key == pair[1].key {
                found.problems.push(format!(
                    "environment variables {} and {} both set `{}`; keep one",
                    pair[0].name, pair[1].name, pair[0].key
                ));
            }
        }
        found.problems.sort();
        found.warnings.sort();
        found
    }

    /// The keys, with dots, and their values.
    pub(super) fn layer(&self) -> Vec<(String, Node)> {
        let node = |variable: &Variable| Node {
            value: Value::Text(variable.value.clone()),
            origin: Origin::variable(&variable.name),
        };
        self.values
            .iter()
            .map(|variable| (variable.key.clone(), node(variable)))
            .collect()
    }

    fn key(&mut self, name: String, rest: &str, value: &OsString) {
        // An empty variable is how container tools write "not set".
        if value.is_empty() {
            return;
        }
        let key = rest.to_ascii_lowercase().replace("__", ".");
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
        let sound = |part: &str| !part.is_empty() && part.bytes().all(plain);
        // A path far longer than any key stops here, before anything walks down it.
        if key.split('.').count() > 8 || !key.split('.').all(sound) {
            self.problems
                .push(format!("environment variable {name}: there is no such key"));
            return;
        }
        match value.to_str() {
            Some(value) => self.values.push(Variable {
                key,
                name,
                value: value.to_owned(),
            }),
            None => self
                .problems
                .push(format!("environment variable {name}: not UTF-8")),
        }
    }

    /// Judges a variable with a single underscore behind our name. One that was meant as a key is refused,
    /// since running without it would be a silent surprise. Kubernetes sets others by itself for a service
    /// of our name.
    fn stray(&mut self, name: &str, rest: &str) {
        let is_kubernetes =
            rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_");
        let is_for_tests = cfg!(feature = "testing") && rest == "FAIL_POINTS";
        if name == FILE_VARIABLE || is_kubernetes || is_for_tests {
            return;
        }
        if let Some(key) = keys::meant_by(rest) {
            let right = key.to_ascii_uppercase().replace('.', "__");
            self.problems.push(format!(
                "environment variable {name}: sections are separated by two underscores; did you mean \
                 {ENV_PREFIX}{right}?"
            ));
            return;
        }
        let section = rest.split('_').find(|word| !word.is_empty());
        if section.is_some_and(keys::is_section) {
            self.problems.push(format!(
                "environment variable {name}: there is no such key, and sections are separated by two \
                 underscores, as in {ENV_PREFIX}RETRY__MAX_ATTEMPTS"
            ));
        } else {
            self.warnings.push(format!(
                "environment variable {name} has no meaning here; keys start with {ENV_PREFIX}"
            ));
        }
    }
}
