//! `outboxd config`: the configuration in effect with the origin of each value, and what a configuration may
//! say.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::Global;
use super::failure::Failure;
use super::output::{Output, print, safe, say, table};
use crate::config::{self, Loaded};

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Every key in effect, its value and its origin: file and line, environment variable, or default.
    /// Secrets and URLs are not shown.
    Show,
    /// The JSON Schema of the configuration file: every key, its meaning, type, unit and default. Needs no
    /// configuration.
    Schema,
}

#[derive(Debug, Serialize)]
struct Entry {
    key: String,
    value: Value,
    origin: String,
}

pub(super) fn run(global: &Global, args: &ConfigArgs, out: &Output) -> Result<(), Failure> {
    match args.command {
        ConfigCommand::Show => show(global, out),
        ConfigCommand::Schema => schema(),
    }
}

fn schema() -> Result<(), Failure> {
    let schema = serde_json::to_string_pretty(&config::schema())
        .map_err(|error| Failure::failed(format!("cannot show the schema: {error}")))?;
    print(&format!("{schema}\n"))
}

fn show(global: &Global, out: &Output) -> Result<(), Failure> {
    let loaded = global.load()?;
    for warning in &loaded.warnings {
        say(format_args!("warning: {warning}"));
    }
    let entries = entries(&loaded)?;
    out.write(&entries, |entries| {
        let rows: Vec<Vec<String>> = entries
            .iter()
            .map(|entry| {
                vec![
                    entry.key.clone(),
                    safe(&entry.value.to_string()),
                    entry.origin.clone(),
                ]
            })
            .collect();
        table(&["KEY", "VALUE", "ORIGIN"], &rows)
    })
}

fn entries(loaded: &Loaded) -> Result<Vec<Entry>, Failure> {
    let tree = serde_json::to_value(&loaded.config)
        .map_err(|error| Failure::failed(format!("cannot show the configuration: {error}")))?;
    let mut entries = Vec::new();
    flatten(&tree, String::new(), loaded, &mut entries);
    Ok(entries)
}

fn flatten(tree: &Value, path: String, loaded: &Loaded, entries: &mut Vec<Entry>) {
    match tree {
        Value::Object(table) => {
            for (key, value) in table {
                let path = match path.as_str() {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                flatten(value, path, loaded, entries);
            }
        }
        Value::Null => {}
        value => entries.push(Entry {
            origin: loaded
                .given
                .get(&path)
                .cloned()
                .unwrap_or_else(|| "default".to_owned()),
            key: path,
            value: value.clone(),
        }),
    }
}
