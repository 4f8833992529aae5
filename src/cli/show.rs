//! `outboxd config show`: the configuration in effect, and where each value comes from.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::Global;
use super::failure::Failure;
use super::output::{Output, safe, say, table};
use crate::config::Loaded;

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Every key in effect, its value and its origin. Secrets and URLs are not shown.
    Show,
}

#[derive(Debug, Serialize)]
struct Entry {
    key: String,
    value: Value,
    origin: String,
}

pub(super) fn run(global: &Global, args: &ConfigArgs, out: &Output) -> Result<(), Failure> {
    let ConfigCommand::Show = args.command;
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
