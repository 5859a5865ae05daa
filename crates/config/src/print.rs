//! The effective configuration as TOML, with the source of each value.

use std::fmt::Write;

use serde_json::Value as Json;

use text::terminal::plain;

use crate::files::Places;
use crate::schema::{self, branch, named, properties};
use crate::shape::{Applies, applies};
use crate::tree::{Node, NodeId, Nodes, Origin, Table, Value, is_bare};

pub(crate) fn print(root: &Table, nodes: &Nodes, places: &Places) -> String {
    let mut printer = Printer { nodes, places, out: String::new() };
    printer.sections(root, schema::root(), "");
    printer.out
}

/// Writes the values of a document without their sources: sections, and the tables that have names.
pub(crate) fn document(root: &Table) -> String {
    let mut out = String::new();
    let mut section = |header: String, table: &Table| {
        let empty = if out.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{empty}[{header}]");
        for (key, node) in &table.entries {
            let _ = writeln!(out, "{} = {}", write_key(key), write_value(&node.value));
        }
    };
    for (key, node) in &root.entries {
        let Value::Table(table) = &node.value else { continue };
        if property(schema::root(), key).and_then(|schema| branch(schema, "object")).and_then(named).is_none()
        {
            section(write_key(key), table);
            continue;
        }
        for (name, inner) in &table.entries {
            if let Value::Table(inner) = &inner.value {
                section(format!("{}.{}", write_key(key), write_key(name)), inner);
            }
        }
    }
    out
}

/// Writes one value, or each value of a table in a line of its own.
pub(crate) fn part(name: &str, node: &Node, schema: &Json, nodes: &Nodes, places: &Places) -> String {
    let mut printer = Printer { nodes, places, out: String::new() };
    match &node.value {
        Value::Table(table) => {
            let object = branch(schema, "object").unwrap_or(&Json::Null);
            for (key, inner) in &table.entries {
                let Some(property) = property(object, key) else { continue };
                if *nodes.origin(inner.id) != Origin::Default || is_used(table, object, property) {
                    printer.value(&write_key(key), inner, property);
                }
            }
        }
        _ => printer.value(&write_key(name), node, schema),
    }
    printer.out
}

struct Printer<'a> {
    nodes: &'a Nodes,
    places: &'a Places,
    out: String,
}

impl Printer<'_> {
    /// Writes tables with their own headers: sections, named tables, and lists of tables.
    fn sections(&mut self, table: &Table, schema: &Json, prefix: &str) {
        for (key, node) in &table.entries {
            let Some(property) = property(schema, key) else {
                continue;
            };
            let header = format!("{prefix}{}", write_key(key));
            match &node.value {
                Value::Table(inner) => {
                    let Some(object) = branch(property, "object") else {
                        continue;
                    };
                    if named(object).is_some() {
                        self.sections(inner, object, &format!("{header}."));
                    } else {
                        self.section(&format!("[{header}]"), &header, inner, object);
                    }
                }
                _ => continue,
            }
        }
    }

    fn section(&mut self, line: &str, path: &str, table: &Table, schema: &Json) {
        if !self.out.is_empty() {
            self.out.push('\n');
        }
        let _ = writeln!(self.out, "{line}");
        let mut lists = Vec::new();
        for (key, node) in &table.entries {
            let Some(property) = property(schema, key) else {
                continue;
            };
            if *self.nodes.origin(node.id) == Origin::Default && !is_used(table, schema, property) {
                continue;
            }
            if let (Value::List(list), Some(entries)) = (&node.value, tables_of(property)) {
                lists.push((key, list, entries));
                continue;
            }
            self.value(&write_key(key), node, property);
        }
        for (key, list, entries) in lists {
            let header = format!("{path}.{}", write_key(key));
            for entry in list {
                if let Value::Table(inner) = &entry.value {
                    self.section(&format!("[[{header}]]"), &header, inner, entries);
                }
            }
        }
    }

    /// Writes one value per line. Tables become dotted keys, so that each of their values has a line with its source.
    fn value(&mut self, key: &str, node: &Node, schema: &Json) {
        match &node.value {
            Value::Table(table) if !table.entries.is_empty() => {
                let object = branch(schema, "object");
                for (inner, node) in &table.entries {
                    let schema = object.and_then(|object| property(object, inner)).unwrap_or(&Json::Null);
                    self.value(&format!("{key}.{}", write_key(inner)), node, schema);
                }
            }
            Value::Table(_) if *self.nodes.origin(node.id) == Origin::Default => {}
            Value::List(list)
                if list.len() > 1 || list.iter().any(|entry| matches!(entry.value, Value::Table(_))) =>
            {
                let _ = writeln!(self.out, "{key} = [  # {}", self.origin(node.id));
                for entry in list {
                    let written = write_value(&entry.value);
                    let _ = writeln!(self.out, "  {written},  # {}", self.origin(entry.id));
                }
                self.out.push_str("]\n");
            }
            Value::List(list) => {
                let origin = list.first().map_or(node.id, |entry| entry.id);
                let written = write_value(&node.value);
                let _ = writeln!(self.out, "{key} = {written}  # {}", self.origin(origin));
            }
            value => {
                let _ = writeln!(self.out, "{key} = {}  # {}", write_value(value), self.origin(node.id));
            }
        }
    }

    fn origin(&self, id: NodeId) -> String {
        let line = || {
            let at = self.nodes.value_span(id).map_or(0, |span| span.start);
            plain(&self.places.origin(at))
        };
        match self.nodes.origin(id) {
            Origin::Default => "default".into(),
            Origin::File => line(),
            Origin::Substituted(written) => {
                format!("{}, {}", line(), plain(written))
            }
            Origin::Environment(name) => {
                format!("environment {}", plain(name))
            }
            Origin::Flag(flag) => (*flag).to_owned(),
        }
    }
}

/// Reports whether a default has an effect beside the other keys of its table.
fn is_used(table: &Table, schema: &Json, property: &Json) -> bool {
    ["x-only", "x-effect"]
        .iter()
        .all(|attribute| matches!(applies(table, schema, property, attribute), Applies::Yes))
}

fn property<'s>(schema: &'s Json, key: &str) -> Option<&'s Json> {
    properties(schema).and_then(|known| known.get(key)).or_else(|| named(schema))
}

/// Returns the schema of the entries, if entries have their own headers.
fn tables_of(schema: &Json) -> Option<&Json> {
    let items = branch(schema, "array")?.get("items")?;
    if branch(items, "string").is_some() {
        return None;
    }
    branch(items, "object")
}

fn write_key(key: &str) -> String {
    if is_bare(key) { key.to_owned() } else { write_text(key) }
}

fn write_value(value: &Value) -> String {
    match value {
        // Escape `${`, which loading would replace; all variables are already replaced.
        Value::Text(text) => write_text(&text.replace("${", "$${")),
        Value::Time(text) => text.clone(),
        Value::Integer(integer) => integer.to_string(),
        Value::Float(float) => float.to_string(),
        Value::Switch(switch) => switch.to_string(),
        Value::List(list) => {
            let entries: Vec<_> = list.iter().map(|entry| write_value(&entry.value)).collect();
            format!("[{}]", entries.join(", "))
        }
        Value::Table(table) => {
            let entries: Vec<_> = table
                .entries
                .iter()
                .map(|(key, node)| format!("{} = {}", write_key(key), write_value(&node.value)))
                .collect();
            if entries.is_empty() { "{}".into() } else { format!("{{ {} }}", entries.join(", ")) }
        }
    }
}

/// Writes a TOML basic string.
fn write_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            plain => out.push(plain),
        }
    }
    out.push('"');
    out
}
