//! Values as operators write them: TOML, or a text without quotes.

use serde_json::Value as Json;
use toml_edit::Value;

use super::error::EditError;
use crate::quote::quote;
use crate::schema::branch;
use crate::shape::is_too_large;

/// Reads a value. A word that is not TOML, such as `10.0.0.11:8000` or `2s`, is a text, and so is a number where the
/// schema of the key has texts alone.
pub(super) fn parse(text: &str, schema: Option<&Json>) -> Result<Value, EditError> {
    let error = match text.parse::<Value>() {
        Ok(value) => return Ok(as_text(&value, text, schema).unwrap_or(value)),
        Err(error) => error,
    };
    let begins = text.trim_start();
    let is_address = begins.starts_with('[') && begins.contains("]:") && !begins.contains(['"', '\'']);
    if begins.starts_with(['"', '\'', '{']) || (begins.starts_with('[') && !is_address) {
        let message = error.message().lines().next().unwrap_or_default().to_owned();
        return Err(EditError::new(format!("{} is not a TOML value: {message}", quote(text)))
            .hint("a shell removes quotes: write '[\"a\", \"b\"]' or '{ host = \"x\" }'"));
    }
    if begins.is_empty() {
        return Err(EditError::new("the value is empty").hint("write '\"\"' for an empty text"));
    }
    if is_too_large(begins) && schema.is_some_and(|schema| branch(schema, "integer").is_some()) {
        return Err(EditError::new(format!("{} is too large", begins.trim_end())));
    }
    Ok(Value::from(text))
}

/// The text itself, if the key accepts texts but no value of this type.
fn as_text(value: &Value, text: &str, schema: Option<&Json>) -> Option<Value> {
    let kind = match value {
        Value::Integer(_) => "integer",
        Value::Float(_) => "number",
        Value::Boolean(_) => "boolean",
        Value::Datetime(_) => "date",
        Value::String(_) | Value::Array(_) | Value::InlineTable(_) => return None,
    };
    let schema = schema?;
    let accepts = |kind| branch(schema, kind).is_some();
    (!accepts(kind) && accepts("string")).then(|| Value::from(text.trim()))
}

/// Reports whether two values are equal, however they are written.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a.value() == b.value(),
        (Value::Integer(a), Value::Integer(b)) => a.value() == b.value(),
        (Value::Float(a), Value::Float(b)) => a.value().to_bits() == b.value().to_bits(),
        (Value::Boolean(a), Value::Boolean(b)) => a.value() == b.value(),
        (Value::Datetime(a), Value::Datetime(b)) => a.value() == b.value(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| equal(a, b))
        }
        (Value::InlineTable(a), Value::InlineTable(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| equal(value, other)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(text: &str, schema: &Json) -> String {
        parse(text, Some(schema)).unwrap().to_string()
    }

    #[test]
    fn words_are_texts_and_the_rest_is_toml() {
        let text = json!({ "type": "string" });
        for word in
            ["10.0.0.11:8000", "2s", "[::1]:80", "unix:/run/a b.sock", ":80", "0644", "least-connections"]
        {
            assert_eq!(written(word, &text), format!("\"{word}\""));
        }
        assert_eq!(written("\"2s\"", &text), "\"2s\"");
        assert_eq!(written("5", &text), "\"5\"", "the key has only texts");
        assert_eq!(written("5", &json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] })), "5");
        assert_eq!(written("true", &json!({ "type": "boolean" })), "true");
        assert_eq!(written("[\"a\", 1]", &text), "[\"a\", 1]");
        assert_eq!(written("{ a = 1 }", &text), "{ a = 1 }");
    }

    #[test]
    fn broken_toml_is_no_word() {
        for bad in ["\"a", "[\"a\"", "{ a = }", "{ a", "'a", "[1, 2", "", " "] {
            assert!(parse(bad, None).is_err(), "{bad}");
        }
    }
}
