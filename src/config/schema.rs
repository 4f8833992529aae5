//! The JSON Schema of the file, made from the structs that read it.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::Config;

/// The schema (draft 2020-12): every key with its type, meaning, unit and default, for editors and for
/// tools that write configurations. What only shows in combination is left to `outboxd check`.
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Config>().to_value();
    plain(&mut schema);
    for section in super::keys::NAMED {
        schema["properties"][section]["propertyNames"] = json!({
            "pattern": "^[a-z0-9_-]+$",
            "not": { "pattern": "__" },
        });
    }
    schema
}

/// A key is there or not: a file has no word for "nothing".
fn plain(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("default").is_some_and(Value::is_null) {
                fields.remove("default");
            }
            // Comments wrap where the code does.
            if let Some(Value::String(words)) = fields.get_mut("description") {
                *words = words.split_whitespace().collect::<Vec<_>>().join(" ");
            }
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|one| one != "null");
                if let [one] = types.as_slice() {
                    let one = one.clone();
                    fields.insert("type".into(), one);
                }
            }
            if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
                choices.retain(|one| one.get("type").is_none_or(|kind| kind != "null"));
                if let [Value::Object(one)] = choices.as_slice() {
                    let one = one.clone();
                    fields.remove("anyOf");
                    fields.extend(one);
                }
            }
            fields.values_mut().for_each(plain);
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}
