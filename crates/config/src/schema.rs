//! The schema of the configuration, generated from `raw.rs`: for editors, for the reference page, and for `shape.rs`.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

mod reference;

use crate::raw::RawConfig;

/// Returns the JSON schema (draft 2020-12), as `penstock config schema` prints it.
pub fn json() -> String {
    let mut schema = root().clone();
    publish(&mut schema);
    let schema = sorted(schema);
    let mut text = serde_json::to_string_pretty(&schema).expect("a JSON value always serialises");
    text.push('\n');
    text
}

/// Returns the reference page in Markdown.
pub fn reference() -> String {
    reference::page(root())
}

/// Returns the schema with all references inlined, without `null`, and with the attributes of `raw.rs`.
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

/// Returns the alternatives of a schema.
pub(crate) fn branches(schema: &Value) -> Vec<&Value> {
    match schema.get("anyOf").and_then(Value::as_array) {
        Some(any) => any.iter().flat_map(branches).collect(),
        None => vec![schema],
    }
}

/// Returns the alternative for values of this type.
pub(crate) fn branch<'s>(schema: &'s Value, kind: &str) -> Option<&'s Value> {
    let fits = |of: &str| of == kind || of == "number" && kind == "integer";
    branches(schema).into_iter().find(|branch| branch.get("type").and_then(Value::as_str).is_some_and(fits))
}

/// Returns the keys of a table.
pub(crate) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// Returns the JSON Schema of the tables whose names the operator chooses, such as `NAME` in `[pool.NAME]`.
pub(crate) fn named(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|inner| inner.is_object())
}

/// Returns the texts of a list in the schema.
pub(crate) fn words<'s>(schema: &'s Value, attribute: &str) -> Vec<&'s str> {
    let list = schema.get(attribute).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Sorts all keys alphabetically: some builds of `serde_json` keep another order.
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

/// Removes attributes that only this program reads, and writes `x-words` as a standard keyword.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "this test reads and writes its file")]

    use std::path::Path;

    use super::*;
    use crate::types::ProtocolName;

    #[test]
    fn no_word_that_is_accepted_is_told_as_one_of_a_later_version() {
        fn check(value: &serde_json::Value) {
            if let (Some(later), Some(words)) = (value["x-later"].as_array(), value["enum"].as_array()) {
                let both: Vec<_> = later.iter().filter(|word| words.contains(word)).collect();
                assert!(both.is_empty(), "x-later still names {both:?}");
            }
            let children: Vec<_> = match value {
                serde_json::Value::Object(object) => object.values().collect(),
                serde_json::Value::Array(list) => list.iter().collect(),
                _ => Vec::new(),
            };
            children.into_iter().for_each(check);
        }
        check(root());
    }

    #[test]
    fn for_each_listener_key_it_is_decided_with_which_protocols_it_goes() {
        let keys =
            root()["properties"]["listener"]["additionalProperties"]["properties"].as_object().unwrap();
        let mut table = format!("key: {}\n", ProtocolName::WORDS.join(" "));
        for (key, property) in keys {
            let only: Option<Vec<&str>> = property["x-only"]["protocol"]
                .as_array()
                .map(|words| words.iter().map(|word| word.as_str().unwrap()).collect());
            let unknown: Vec<_> =
                only.iter().flatten().filter(|word| !ProtocolName::WORDS.contains(word)).collect();
            assert!(unknown.is_empty(), "x-only of {key} names {unknown:?}, which are no protocols");
            let goes = |word: &&&str| only.as_ref().is_none_or(|only| only.contains(word));
            let with: Vec<_> = ProtocolName::WORDS.iter().filter(goes).copied().collect();
            table += &format!("{key}: {}\n", with.join(" "));
        }
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/listener_keys.txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&golden, &table).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&golden).unwrap_or_default(),
            table,
            "UPDATE_GOLDEN=1 writes it anew"
        );
    }
}
