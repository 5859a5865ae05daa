//! Texts for mismatches with the schema.

use serde_json::Value as Json;

use crate::quote::quote;
use crate::schema::{branch, branches, named, properties, words};
use crate::tree::Value;

/// Returns the sections that have a key with this name.
pub(super) fn homes(key: &str, root: &Json) -> Vec<String> {
    let mut homes = Vec::new();
    for (section, schema) in properties(root).into_iter().flatten() {
        let (label, inner) = match named(schema) {
            Some(inner) => (format!("[{section}.NAME]"), inner),
            None => (format!("[{section}]"), schema),
        };
        for (name, property) in properties(inner).into_iter().flatten() {
            if name == key {
                homes.push(label.clone());
            }
            let table = branch(property, "object").filter(|table| properties(table).is_some());
            if table.and_then(properties).is_some_and(|inside| inside.contains_key(key)) {
                homes.push(format!("{name} of {label}"));
            }
            let entries = branch(property, "array").and_then(|list| list.get("items"));
            if entries
                .and_then(|items| branch(items, "object"))
                .and_then(properties)
                .is_some_and(|inside| inside.contains_key(key))
            {
                homes.push(format!("an entry of {name} of {label}"));
            }
        }
    }
    homes.truncate(3);
    homes
}

/// Returns an example value for a missing key.
pub(super) fn example(property: &Json) -> Option<String> {
    if let Some(list) = property.get("x-list-example").and_then(Json::as_str) {
        return Some(list.to_owned());
    }
    property.get("examples")?.get(0).map(Json::to_string)
}

pub(super) fn expected(schema: &Json) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for branch in branches(schema) {
        let form = branch.get("x-form").and_then(Json::as_str);
        let mut known = words(schema, "x-words");
        known.extend(words(branch, "enum"));
        kinds.push(match branch.get("type").and_then(Json::as_str) {
            Some("string") if !known.is_empty() => listed(&known),
            Some("string") => form.map_or_else(|| "a text".to_owned(), |form| format!("a {form}")),
            Some("integer") => "a whole number".to_owned(),
            Some("number") => "a number".to_owned(),
            Some("boolean") if branch.get("const").is_some() => "true".to_owned(),
            Some("boolean") => "true or false".to_owned(),
            Some("array") => "a list".to_owned(),
            _ => "a table".to_owned(),
        });
    }
    kinds.join(" or ")
}

pub(super) fn found(value: &Value) -> &'static str {
    match value {
        Value::Text(_) => "a text",
        Value::Integer(_) => "a number",
        Value::Float(_) => "a fraction",
        Value::Switch(true) => "true",
        Value::Switch(false) => "false",
        Value::Time(_) => "a date",
        Value::List(_) => "a list",
        Value::Table(_) => "a table",
    }
}

/// Tests whether a text is a whole number that no key can hold.
pub(crate) fn is_too_large(text: &str) -> bool {
    let text = text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<i64>().is_err()
}

pub(super) fn mismatch_hint(value: &Value, schema: &Json) -> Option<String> {
    if let Some(instead) = schema.get("x-instead").and_then(|kinds| kinds.get(value.kind())?.as_str()) {
        let number = if let Value::Integer(number) = value { number.to_string() } else { String::new() };
        return Some(instead.replace("{}", &number));
    }
    let text = branch(schema, "string");
    let form = text.and_then(|text| text.get("x-form")).and_then(Json::as_str);
    Some(match value {
        Value::Integer(number) => match form {
            Some("duration") => format!("durations have a unit and stand in quotes: \"{number}s\""),
            Some("size") if *number == 0 => "sizes have a unit and stand in quotes: \"32KiB\"".into(),
            Some("size") => {
                format!("sizes have a unit and stand in quotes: \"{number}B\" or \"{number}KiB\"")
            }
            Some("rate") => {
                format!("rates have a unit and stand in quotes: \"{number}B/s\" or \"{number}KiB/s\"")
            }
            Some("file mode") => "octal digits stand in quotes: \"0660\"".into(),
            Some("listen address") => format!("write \":{number}\" to listen on every address"),
            Some(_) => return None,
            None if text.is_some() => format!("put it in quotes: \"{number}\""),
            None if branch(schema, "array").is_some() => "a list stands in [ ]".into(),
            None => return None,
        },
        Value::Text(written) if branch(schema, "array").is_some() => {
            format!("a list stands in [ ]: [{}]", quote(written))
        }
        Value::Text(written) if branch(schema, "integer").is_some() && written.parse::<i64>().is_ok() => {
            format!("without quotes: {written}")
        }
        Value::Text(written)
            if branch(schema, "integer").is_some()
                && written.strip_suffix('%').is_some_and(|number| number.trim().parse::<i64>().is_ok()) =>
        {
            format!("a number without quotes and percent sign: {}", written.trim_end_matches('%').trim())
        }
        Value::Text(_) if branch(schema, "boolean").is_some() => "write true or false, without quotes".into(),
        Value::Text(_) if branch(schema, "object").is_some() => {
            "a table stands in { }: { key = value }".into()
        }
        Value::Switch(switch) if text.is_some() => {
            let word = if *switch { "on" } else { "off" };
            let mut known = words(schema, "x-words");
            known.extend(text.into_iter().flat_map(|text| words(text, "enum")));
            if !known.contains(&word) {
                return None;
            }
            format!("write {}, in quotes", quote(word))
        }
        Value::List(_) if text.is_some() => "one value is enough here: leave out the [ ]".into(),
        _ => return None,
    })
}

pub(super) fn listed(words: &[&str]) -> String {
    alternatives(&words.iter().map(|word| quote(word)).collect::<Vec<_>>())
}

pub(super) fn alternatives(choices: &[String]) -> String {
    match choices {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
