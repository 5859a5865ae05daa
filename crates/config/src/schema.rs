//! The schema of the configuration, generated from `raw.rs`: for editors, for the reference page, and for `shape.rs`.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

mod reference;

use crate::raw::RawConfig;

/// The JSON schema (draft 2020-12), as `penstock config schema` prints it.
pub fn json() -> String {
    let mut schema = root().clone();
    publish(&mut schema);
    let schema = sorted(schema);
    let mut text = serde_json::to_string_pretty(&schema).expect("a JSON value always serialises");
    text.push('\n');
    text
}

/// The reference page in Markdown.
pub fn reference() -> String {
    reference::page(root())
}

/// The schema with everything inlined, without `null`, and with what the attributes in `raw.rs` add.
pub(crate) fn root() -> &'static Value {
    static ROOT: LazyLock<Value> = LazyLock::new(|| {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<RawConfig>().to_value();
        normalise(&mut schema);
        let mut schema = sorted(schema);
        if let Some(root) = schema.as_object_mut() {
            root.insert("title".into(), json!("Penstock configuration"));
        }
        schema
    });
    &ROOT
}

/// The alternatives of a schema.
pub(crate) fn branches(schema: &Value) -> Vec<&Value> {
    match schema.get("anyOf").and_then(Value::as_array) {
        Some(any) => any.iter().flat_map(branches).collect(),
        None => vec![schema],
    }
}

/// The alternative that takes values of this kind.
pub(crate) fn branch<'s>(schema: &'s Value, kind: &str) -> Option<&'s Value> {
    branches(schema).into_iter().find(|branch| branch.get("type").and_then(Value::as_str) == Some(kind))
}

/// The keys of a table.
pub(crate) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// What tables under chosen names hold.
pub(crate) fn named(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|inner| inner.is_object())
}

/// The words of a list in the schema.
pub(crate) fn words<'s>(schema: &'s Value, attribute: &str) -> Vec<&'s str> {
    let list = schema.get(attribute).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// In the order of the alphabet, whether or not this build of `serde_json` keeps another one.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut entries: Vec<_> = object.into_iter().map(|(key, inner)| (key, sorted(inner))).collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(sorted).collect()),
        single => single,
    }
}

fn normalise(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            for attribute in ["format", "title", "$comment"] {
                if object.get(attribute).is_some_and(Value::is_string) {
                    object.remove(attribute);
                }
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    object.insert("type".into(), only);
                }
            }
            if let Some(Value::Array(words)) = object.get_mut("enum") {
                words.retain(|word| !word.is_null());
            }
            if let Some(Value::Array(any)) = object.get_mut("anyOf") {
                any.retain(|branch| branch.get("type").and_then(Value::as_str) != Some("null"));
                if any.len() == 1
                    && let Some(Value::Object(only)) = any.pop()
                {
                    object.remove("anyOf");
                    for (key, value) in only {
                        object.entry(key).or_insert(value);
                    }
                }
            }
            if let Some(Value::Object(properties)) = object.get_mut("properties") {
                let mut required = Vec::new();
                for (name, property) in properties.iter_mut() {
                    if property
                        .as_object_mut()
                        .is_some_and(|property| property.remove("x-required").is_some())
                    {
                        required.push(json!(name));
                    }
                }
                object.remove("required");
                if !required.is_empty() {
                    object.insert("required".into(), Value::Array(required));
                }
            }
            for (key, inner) in object.iter_mut() {
                match key.as_str() {
                    "properties" => {
                        for property in inner.as_object_mut().into_iter().flat_map(Map::values_mut) {
                            normalise(property);
                        }
                    }
                    "anyOf" | "items" | "additionalProperties" => normalise(inner),
                    _ => {}
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(normalise),
        _ => {}
    }
}

/// Takes away what only this program understands, and says words of `x-words` in the standard's way.
fn publish(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(words) = object.remove("x-words")
                && let Some(Value::Array(any)) = object.get_mut("anyOf")
            {
                for branch in any.iter_mut().filter_map(Value::as_object_mut) {
                    if branch.get("type").and_then(Value::as_str) == Some("string") {
                        branch.insert("enum".into(), words.clone());
                    }
                }
            }
            object.retain(|key, _| !key.starts_with("x-"));
            for (key, inner) in object.iter_mut() {
                if key == "properties" {
                    inner.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(publish);
                } else if key != "default" {
                    publish(inner);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(publish),
        _ => {}
    }
}
