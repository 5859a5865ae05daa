//! The reference page, generated from the schema.

use std::fmt::Write;

use serde_json::Value;

use super::{branch, branches, named, properties, words};

pub(super) fn page(root: &Value) -> String {
    let mut out = String::from(PREFACE);
    out.push_str("\n## Before the sections\n\n| key | type | default | meaning |\n|---|---|---|---|\n");
    let single = |property: &Value| branch(property, "object").is_none();
    for (key, property) in properties(root).into_iter().flatten().filter(|(_, property)| single(property)) {
        let _ = writeln!(
            out,
            "| `{key}` | {} | {} | {} |",
            types(property),
            default(property, false),
            cell(&meaning(property))
        );
    }
    for section in sections(root) {
        let _ = writeln!(out, "\n{} `{}`\n", "#".repeat(section.depth), section.title);
        let _ = writeln!(out, "{}\n", section.meaning);
        out.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
        let needed = words(section.table, "required");
        let mut known: Vec<_> = properties(section.table).into_iter().flatten().collect();
        known.sort_by_key(|(key, _)| !needed.contains(&key.as_str()));
        for (key, property) in known {
            let required = needed.contains(&key.as_str());
            let _ = writeln!(
                out,
                "| `{key}` | {} | {} | {} |",
                types(property),
                default(property, required),
                cell(&meaning(property))
            );
        }
        if let Some(example) = section.example {
            let _ = write!(out, "\n```toml\n{example}```\n");
        }
    }
    out
}

/// One table of the page.
struct Section<'s> {
    title: String,
    depth: usize,
    meaning: String,
    table: &'s Value,
    example: Option<&'s str>,
}

fn sections(root: &Value) -> Vec<Section<'_>> {
    let mut found = Vec::new();
    let mut known: Vec<_> = properties(root).into_iter().flatten().collect();
    let rank = |key: &str| ORDER.iter().position(|section| *section == key).unwrap_or(ORDER.len());
    known.sort_by_key(|(key, _)| rank(key));
    for (key, property) in known {
        collect(key, property, 2, Form::Header, &mut found);
    }
    found
}

/// Syntax of a table in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `[section]`
    Header,
    /// `key = { ... }`
    Inline,
}

fn collect<'s>(path: &str, property: &'s Value, depth: usize, form: Form, found: &mut Vec<Section<'s>>) {
    let (path, title, table) = if let Some(table) = branch(property, "object") {
        match named(table) {
            Some(inner) => (format!("{path}.NAME"), format!("[{path}.NAME]"), inner),
            None if form == Form::Header => (path.to_owned(), format!("[{path}]"), table),
            None => (path.to_owned(), path.to_owned(), table),
        }
    } else if let Some(table) =
        branch(property, "array").and_then(|list| branch(list.get("items")?, "object"))
    {
        if branch(property, "array")
            .and_then(|list| list.get("items"))
            .is_some_and(|items| branch(items, "string").is_some())
        {
            (path.to_owned(), format!("{path} (an entry as a table)"), table)
        } else {
            (path.to_owned(), format!("[[{path}]]"), table)
        }
    } else {
        return;
    };
    let Some(known) = properties(table) else {
        return;
    };
    let meaning = meaning(property);
    let example = property.get("x-example").and_then(Value::as_str);
    found.push(Section { title, depth, meaning, table, example });
    for (key, property) in known {
        collect(&format!("{path}.{key}"), property, 3, Form::Inline, found);
    }
}

fn meaning(property: &Value) -> String {
    let mut text = property.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ");
    for (attribute, verb) in [("x-only", "Only with"), ("x-effect", "Used with")] {
        for (key, wanted) in property.get(attribute).and_then(Value::as_object).into_iter().flatten() {
            let wanted: Vec<_> = wanted
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(|word| format!("`{word}`"))
                .collect();
            let _ = write!(text, " {verb} `{key}` {}.", wanted.join(" or "));
        }
    }
    text
}

fn types(property: &Value) -> String {
    let known = words(property, "x-words");
    let closed = words(property, "enum");
    if !closed.is_empty() {
        return quoted(&closed);
    }
    let also = words(property, "x-also");
    let also = (!also.is_empty()).then(|| quoted(&also));
    let kinds =
        branches(property).into_iter().map(|branch| match branch.get("type").and_then(Value::as_str) {
            Some("string") if !known.is_empty() => quoted(&known),
            Some("string") => branch.get("x-form").and_then(Value::as_str).unwrap_or("text").to_owned(),
            Some("integer") => range(property),
            Some("number") => "number".into(),
            Some("boolean") if branch.get("const").is_some() => "`true`".into(),
            Some("boolean") => "`true`, `false`".into(),
            Some("array") => match branch.get("items") {
                Some(items) if super::branch(items, "string").is_none() => "list of tables".into(),
                Some(items) => format!("list of {}", types(items)),
                None => "list".into(),
            },
            _ => match named(branch) {
                Some(inner) if properties(inner).is_none() => format!("table of {}", types(inner)),
                _ => "table".into(),
            },
        });
    also.into_iter().chain(kinds).collect::<Vec<_>>().join(" or ")
}

fn range(property: &Value) -> String {
    match (property.get("minimum").and_then(Value::as_i64), property.get("maximum").and_then(Value::as_i64)) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("number from {least}"),
        _ => "number".into(),
    }
}

fn default(property: &Value, required: bool) -> String {
    if let Some(text) = property.get("x-default").and_then(Value::as_str) {
        return text.to_owned();
    }
    if required {
        return "needed".into();
    }
    match property.get("default") {
        None => "none".into(),
        Some(Value::Object(_))
            if branch(property, "object").is_some_and(|table| properties(table).is_none()) =>
        {
            "`{}`".into()
        }
        Some(Value::Object(_)) => "see below".into(),
        Some(value) if value.as_array().is_some_and(Vec::is_empty) => "`[]`".into(),
        Some(value) => format!("`{value}`"),
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
}

/// Escapes `|`, which ends a cell in Markdown.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// First sections of the page; the others follow in alphabetical order.
const ORDER: [&str; 6] = ["process", "access-log", "control", "admin", "listener", "pool"];

const PREFACE: &str = r#"# Configuration

<!-- Generated from crates/config/src/raw.rs: run the tests of `config` with UPDATE_GOLDEN=1 after a change there. -->

The file is TOML. `penstock check FILE` reads it without touching anything and says everything that is wrong, each with
line and column; `penstock check FILE --print` shows the result with all defaults and where each value came from.
Keys that are not on this page are errors. A file that has an error changes nothing.

```toml
[listener.web]
bind = ":80"
pool = "app"

[pool.app]
backends = ["10.0.0.11:8000", "unix:/run/app.sock"]
health = { http = "/healthz" }
```

## Values

- **duration**: a number and one of `ms`, `s`, `m`, `h`, `d`, in quotes: `"500ms"`, `"2s"`, `"1.5s"`.
- **size**: a whole number and one of `B`, `KiB`, `MiB`, `GiB`, in quotes: `"64KiB"`.
- **network**: `"10.0.0.0/8"`, `"192.0.2.7"`, `"2001:db8::/32"`, or `"unix"` for everybody who comes over a Unix socket.
- **list entry**: `permit` or `deny` and a network: `"permit 10.0.0.0/8"`, `"deny 2001:db8::7"`, `"permit unix"`.
- **path**: from the root. The path of a Unix socket has at most 107 bytes.

## Environment

In any text `${NAME}` is replaced by the environment variable NAME; a variable that is not set is an error.
`${NAME:-text}` gives a default for a variable that is not set or empty. `$${` stands for a plain `${`.
A value that comes from the environment is never shown in a message.

A variable named after a key lies over the file: `PENSTOCK_` and the path in capitals, with `_` for everything but letters
and digits. `PENSTOCK_LISTENER_WEB_BIND=:8080` gives `bind` of `[listener.web]`. Entries of a list are separated by commas.
Listeners, pools and routes must be in the file; a route has its number, from 1: `PENSTOCK_LISTENER_WEB_ROUTE_2_POOL=other`.

A value may also come from a file, so that it stands in no environment: `PENSTOCK_LISTENER_WEB_BIND_FILE=/run/secrets/bind`, and
`NAME_FILE=/path` for a `${NAME}` without a default that is not set itself. The path is absolute; the file has at most 64 KiB of UTF-8, and the
line break at its end does not count. A reload reads it again. A credential of systemd (`LoadCredential=`, systemd.exec(5)) that has
the name of a variable, such as `PENSTOCK_LISTENER_WEB_BIND`, is such a file.

Without a file, each flag of `penstock serve` has a variable: `PENSTOCK_LISTEN` and `PENSTOCK_BACKEND` (several are separated by
blanks), `PENSTOCK_PROTOCOL`, `PENSTOCK_ACCESS_LOG` and so on. A flag wins over its variable. Where a file is named, these variables are not used.

A variable that begins with `PENSTOCK_` and names no key is a
warning with the nearest name, and with `--strict` an error. Nothing is said of `PENSTOCK_CONFIG`, `PENSTOCK_LOG` and others that are
no keys but known to Penstock, nor of what Kubernetes sets beside a Service named `penstock`: `PENSTOCK_SERVICE_HOST`,
`PENSTOCK_SERVICE_PORT`, `PENSTOCK_SERVICE_PORT_*`, `PENSTOCK_PORT`, `PENSTOCK_PORT_<n>_TCP` and `PENSTOCK_PORT_<n>_TCP_*`.

## Several files

`include` names further files, as in `include = ["conf.d/*.toml"]`, which stands before the first section. Relative paths are from the directory of
the file that has the line; a file may include others, four in a row. Sections add up: `[pool.app]` in one file and `[pool.shop]` in another are two
pools. A name (`pool.app`), or a key of a section without names (`process.user`), belongs to one file: in two files it is an error that names both, as
is a file that is included twice. Every fault names the file with line and column. A reload reads all files again, and finds new ones.

Live changes (`penstock ctl set`) go into the file that has the name or the section, and `penstock ctl save` writes each file that changed. A new name
goes into the first file; `include` itself is changed in the file, by a reload.
"#;
