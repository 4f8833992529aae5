//! `config/reference.toml` and the samples say what the code does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use outboxd::config::{Config, Loaded, Place, known_keys};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

fn load(file: &str) -> Loaded {
    let place = Place {
        file: Some(folder().join(file)),
        env: Vec::new(),
    };
    Loaded::from(&place).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A key line: the path with names as `*`, and whether it is in effect.
fn keys_of(text: &str) -> Vec<(String, bool)> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            let parts: Vec<&str> = name.trim_end_matches(']').split('.').collect();
            let named = ["databases", "sinks", "routes"].contains(&parts[0]);
            let parts = parts.iter().enumerate();
            let parts = parts.map(|(at, part)| if named && at == 1 { "*" } else { part });
            section = parts.collect::<Vec<_>>().join(".");
        } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ") {
            let is_key = key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            if is_key {
                keys.push((format!("{section}.{key}"), !line.starts_with('#')));
            }
        }
    }
    keys
}

#[test]
fn the_reference_has_every_key_and_no_other() {
    let text = std::fs::read_to_string(folder().join("reference.toml")).unwrap();
    let written: BTreeSet<String> = keys_of(&text).into_iter().map(|(key, _)| key).collect();
    let known: BTreeSet<String> = known_keys().into_iter().collect();
    let missing: Vec<_> = known.difference(&written).collect();
    let unknown: Vec<_> = written.difference(&known).collect();
    assert!(missing.is_empty(), "not in reference.toml: {missing:?}");
    assert!(unknown.is_empty(), "not in the code: {unknown:?}");
    for key in &known {
        let name = key.rsplit('.').next().unwrap();
        let at = text
            .lines()
            .position(|line| {
                line.trim_start_matches("# ")
                    .starts_with(&format!("{name} = "))
            })
            .unwrap();
        let before = text.lines().nth(at - 1).unwrap();
        assert!(before.starts_with("# "), "`{key}` has no words before it");
    }
}

#[test]
fn what_the_reference_puts_in_effect_is_the_default_or_an_example() {
    // Keys that a complete configuration cannot do without: here the file has an example.
    let examples = [
        "databases.orders.url",
        "sinks.events.type",
        "sinks.events.url",
        "sinks.events.stream",
        "sinks.log.type",
        "sinks.log.path",
        "routes.all.kinds",
        "routes.all.sinks",
    ];
    let reference = serde_json::to_value(load("reference.toml").config).unwrap();
    let default = |path: &str| {
        let named = |value: Value| serde_json::json!({ "orders": value });
        let defaults = serde_json::json!({
            "databases": named(to_value(outboxd::config::Database::default())),
            "sinks": {
                "events": to_value(outboxd::config::Sink::default()),
                "log": to_value(outboxd::config::Sink::default()),
            },
            "routes": { "all": to_value(outboxd::config::Route::default()) },
        });
        let mut all = to_value(Config::default());
        for (section, value) in defaults.as_object().unwrap() {
            all[section] = value.clone();
        }
        all.pointer(&format!("/{}", path.replace('.', "/")))
            .cloned()
    };
    let mut leaves = Vec::new();
    collect(&reference, String::new(), &mut leaves);
    for (path, value) in leaves {
        if !examples.contains(&path.as_str()) {
            assert_eq!(Some(value), default(&path), "{path}");
        }
    }
}

/// A line that is commented out has no default in the code either.
#[test]
fn what_the_reference_comments_out_has_no_default() {
    let text = std::fs::read_to_string(folder().join("reference.toml")).unwrap();
    let sections = [
        (
            "databases.*",
            to_value(outboxd::config::Database::default()),
        ),
        ("sinks.*", to_value(outboxd::config::Sink::default())),
        ("routes.*", to_value(outboxd::config::Route::default())),
        ("", to_value(Config::default())),
    ];
    for (key, in_effect) in keys_of(&text) {
        let (section, defaults) = sections
            .iter()
            .find(|(section, _)| key.starts_with(section))
            .unwrap();
        let rest = key.strip_prefix(section).unwrap().trim_start_matches('.');
        let default = defaults.pointer(&format!("/{}", rest.replace('.', "/")));
        let has_default = default.is_some_and(|value| !value.is_null());
        assert!(
            in_effect || !has_default,
            "{key} has a default: {default:?}"
        );
    }
}

/// The leaves of the schema: path with names as `*`, and what is said of it.
fn leaves_of(schema: &Value, at: &Value, path: &str, leaves: &mut Vec<(String, Value)>) {
    let mut at = at.clone();
    if let Some(reference) = at.get("$ref").and_then(Value::as_str) {
        let target = schema.pointer(reference.trim_start_matches('#')).unwrap();
        for (key, value) in target.as_object().unwrap() {
            // What stands beside the reference goes before what it leads to.
            let fields = at.as_object_mut().unwrap();
            fields.entry(key.clone()).or_insert(value.clone());
        }
    }
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    if let Some(any) = at.get("additionalProperties").filter(|any| any.is_object()) {
        return leaves_of(schema, any, &below("*"), leaves);
    }
    match at.get("properties").and_then(Value::as_object) {
        Some(properties) => {
            assert_eq!(
                at["additionalProperties"], false,
                "{path} takes unknown keys"
            );
            for (key, property) in properties {
                leaves_of(schema, property, &below(key), leaves);
            }
        }
        None => leaves.push((path.to_owned(), at)),
    }
}

#[test]
fn the_schema_has_every_key_with_its_meaning_and_its_default() {
    let schema = outboxd::config::schema();
    let mut leaves = Vec::new();
    leaves_of(&schema, &schema, "", &mut leaves);
    let written: BTreeSet<String> = leaves.iter().map(|(key, _)| key.clone()).collect();
    let known: BTreeSet<String> = known_keys().into_iter().collect();
    assert_eq!(written, known);

    let reference = std::fs::read_to_string(folder().join("reference.toml")).unwrap();
    let in_effect: BTreeSet<String> = keys_of(&reference)
        .into_iter()
        .filter_map(|(key, in_effect)| in_effect.then_some(key))
        .collect();
    let samples = serde_json::json!({
        "databases": { "*": to_value(outboxd::config::Database::default()) },
        "sinks": { "*": to_value(outboxd::config::Sink::default()) },
        "routes": { "*": to_value(outboxd::config::Route::default()) },
    });
    let mut defaults = to_value(Config::default());
    for (section, value) in samples.as_object().unwrap() {
        defaults[section] = value.clone();
    }
    for (key, leaf) in &leaves {
        let words = leaf["description"].as_str().unwrap_or_default();
        assert!(words.len() > 10, "{key} has no description: {leaf}");
        let kind = leaf.get("type").or(leaf.get("oneOf")).or(leaf.get("enum"));
        assert!(kind.is_some(), "{key} has no type: {leaf}");
        assert!(
            !leaf.to_string().contains("null"),
            "{key} may be null: {leaf}"
        );
        let pointer = format!("/{}", key.replace('.', "/"));
        let code = defaults.pointer(&pointer).filter(|value| !value.is_null());
        // A required list has an empty default in the code and none anywhere else.
        let required = words.contains("Required");
        assert!(
            required || leaf.get("default") == code,
            "{key}: {leaf}, in the code {code:?}"
        );
        if leaf.get("default").is_some() && !required {
            assert!(
                in_effect.contains(key),
                "{key} has a default, and none in reference.toml"
            );
            assert!(
                words.contains("Default: "),
                "{key} does not say its default: {words}"
            );
        } else {
            let says = ["No default", "Default: ", "Required"];
            assert!(
                says.iter().any(|word| words.contains(word)),
                "{key}: {words}"
            );
        }
    }
    // Lengths of time and sizes say their unit.
    let unit = |key: &str| {
        let leaf = leaves.iter().find(|(known, _)| known == key);
        leaf.unwrap().1["x-unit"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert!(unit("lease.ttl").contains("time"));
    assert!(unit("sinks.*.max_in_flight_bytes").contains("bytes"));
}

#[test]
fn the_samples_are_sound() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let loaded = load(&name);
        assert_eq!(loaded.warnings, Vec::<String>::new(), "{name}");
        assert!(!loaded.config.databases.is_empty(), "{name}");
    }
}

fn to_value(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

fn collect(value: &Value, path: String, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                collect(value, path, leaves);
            }
        }
        value => leaves.push((path, value.clone())),
    }
}
