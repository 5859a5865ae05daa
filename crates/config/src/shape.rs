//! Compares the tree of values with the schema: unknown keys, wrong types, missing keys. Reports each mismatch and
//! removes the value, so that the rest can still be checked.

use std::ops::Range;

use serde_json::Value as Json;

mod foreign;
mod wording;

use crate::env;
use crate::error::Report;
use crate::quote::quote;
use crate::schema::{branch, branches, named, properties, words};
use crate::tree::{Node, NodeId, Nodes, Origin, Spans, Step, Table, Value};
use text::nearest::nearest;
pub(crate) use wording::is_too_large;
use wording::{alternatives, example, expected, found, homes, listed, mismatch_hint};

/// Reports mismatches and removes their values.
pub(crate) fn check(root: &mut Table, nodes: &mut Nodes, schema: &Json, report: &mut Report) {
    let root_schema = schema;
    Checker { nodes, report, root_schema }.table(root, Nodes::ROOT, schema);
}

/// Inserts the schema's defaults for absent keys.
pub(crate) fn fill_defaults(root: &mut Table, nodes: &mut Nodes, schema: &Json) {
    fill_table(root, Nodes::ROOT, nodes, schema);
}

/// Returns the byte ranges of possible secrets: the values of header fields.
pub(crate) fn secrets(root: &Table, nodes: &Nodes) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    collect_secrets(root, "", nodes, &mut found);
    found
}

/// Reports whether a key has an effect in its table: `x-only` and `x-effect` list the required words of another key.
pub(crate) fn applies(table: &Table, parent: &Json, property: &Json, attribute: &str) -> Applies {
    let Some((governing, wanted)) =
        property.get(attribute).and_then(Json::as_object).and_then(|only| only.iter().next())
    else {
        return Applies::Yes;
    };
    let default = || properties(parent)?.get(governing)?.get("default")?.as_str();
    let actual = match table.get(governing).map(|node| &node.value) {
        Some(Value::Text(text)) => text.as_str(),
        Some(_) => return Applies::Yes,
        None => match default() {
            Some(text) => text,
            None => return Applies::Yes,
        },
    };
    let wanted: Vec<_> = wanted.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    if wanted.contains(&actual) {
        return Applies::Yes;
    }
    let words: Vec<_> = wanted.iter().map(|word| quote(word)).collect();
    Applies::No { governing: governing.clone(), wanted: words.join(" or "), actual: actual.to_owned() }
}

/// Result of [`applies`].
pub(crate) enum Applies {
    Yes,
    No { governing: String, wanted: String, actual: String },
}

struct Checker<'a> {
    nodes: &'a mut Nodes,
    report: &'a mut Report,
    root_schema: &'a Json,
}

impl Checker<'_> {
    fn table(&mut self, table: &mut Table, id: NodeId, schema: &Json) {
        if let Some(inner) = named(schema) {
            table.entries.retain_mut(|(key, node)| self.keep(id, key, node, inner));
            return;
        }
        let Some(known) = properties(schema) else {
            return;
        };
        table.entries.retain_mut(|(key, node)| match known.get(key) {
            Some(property) => self.keep(id, key, node, property),
            None => {
                if let Some(meant) = self.unknown(node.id, key, known.keys().map(String::as_str)) {
                    // Otherwise the intended key would also be reported as missing.
                    self.nodes.mark_broken(id, &meant);
                }
                false
            }
        });
        for key in words(schema, "required") {
            if table.get(key).is_none() && !self.nodes.is_broken(id, key) {
                let example = known.get(key).and_then(example);
                let hint = example.map(|example| format!("add {key} = {example}"));
                drop(self.report.at_key(self.nodes, id, format!("{key} is missing")).maybe_hint(hint));
            }
        }
        self.dependent(table, id, schema);
    }

    /// Reports keys that have no effect because of another key.
    fn dependent(&mut self, table: &mut Table, id: NodeId, schema: &Json) {
        let known = properties(schema);
        let mut refused = Vec::new();
        for (key, node) in &table.entries {
            let Some(property) = known.and_then(|known| known.get(key)) else {
                continue;
            };
            for attribute in ["x-only", "x-effect"] {
                let Applies::No { governing, wanted, actual } = applies(table, schema, property, attribute)
                else {
                    continue;
                };
                if self.nodes.is_broken(id, &governing) {
                    continue;
                }
                let given = format!("here it is {}", quote(&actual));
                if attribute == "x-only" {
                    let message = format!("only for {governing} = {wanted}, and {given}");
                    drop(self.report.at_key(self.nodes, node.id, message));
                    refused.push(key.clone());
                } else {
                    let message = format!("does nothing unless {governing} is {wanted}, and {given}");
                    drop(self.report.at_key(self.nodes, node.id, message).warning());
                }
            }
        }
        for key in refused {
            self.nodes.mark_broken(id, &key);
            table.entries.retain(|(name, _)| *name != key);
        }
    }

    /// Checks a value and its contents. `false` if the value must be removed.
    fn keep(&mut self, parent: NodeId, key: &str, node: &mut Node, schema: &Json) -> bool {
        let keep = self.value(node, schema);
        if !keep {
            self.nodes.mark_broken(parent, key);
        }
        keep
    }

    fn value(&mut self, node: &mut Node, schema: &Json) -> bool {
        if branch(schema, node.value.kind()).is_none()
            && matches!(self.nodes.origin(node.id), Origin::Substituted(_))
            && let Value::Text(text) = &node.value
        {
            node.value = env::convert(text, schema);
        }
        let Some(fitting) = branch(schema, node.value.kind()) else {
            self.mismatch(node, schema);
            return false;
        };
        match &mut node.value {
            Value::Text(text) => {
                let text = text.clone();
                self.word(node.id, &text, schema, fitting)
            }
            Value::Integer(integer) => {
                let integer = *integer;
                self.range(node.id, integer, schema)
            }
            Value::Switch(switch) => {
                let fits = fitting.get("const").is_none_or(|only| only.as_bool() == Some(*switch));
                if !fits {
                    let message = "only true is allowed here";
                    drop(self.report.at(self.nodes, node.id, message).hint("leave the key out instead"));
                }
                fits
            }
            Value::List(list) => {
                if let Some(items) = fitting.get("items") {
                    let given = list.len();
                    list.retain_mut(|entry| self.value(entry, items));
                    if list.len() < given {
                        self.nodes.mark_incomplete(node.id);
                    }
                }
                true
            }
            Value::Table(table) => {
                self.table(table, node.id, fitting);
                true
            }
            Value::Float(_) | Value::Time(_) => true,
        }
    }

    fn word(&mut self, id: NodeId, text: &str, schema: &Json, fitting: &Json) -> bool {
        let mut known = words(schema, "x-words");
        known.extend(words(fitting, "enum"));
        if known.is_empty() || known.contains(&text) {
            return true;
        }
        if self.is_number_too_large(id, text, schema) {
            return false;
        }
        let shown = self.nodes.show(id, text);
        if words(schema, "x-later").contains(&text) {
            let message = format!("{shown} is not available in this version");
            drop(self.report.at(self.nodes, id, message).hint(format!("there is {}", listed(&known))));
            return false;
        }
        let mut choices: Vec<_> = known.iter().map(|word| quote(word)).collect();
        for other in branches(schema) {
            match other.get("type").and_then(Json::as_str) {
                Some("integer") => choices.push("a number".into()),
                Some("object") => choices.push("a table".into()),
                _ => {}
            }
        }
        let message = format!("{shown} is not {}", alternatives(&choices));
        let near = self.meant_word(id, text, &known);
        let draft = self.report.at(self.nodes, id, message);
        if let Some(near) = near {
            drop(draft.hint_from_value(near));
        }
        false
    }

    /// Reports a number that is too large: the environment and flags have texts alone, so it is no number in the tree.
    fn is_number_too_large(&mut self, id: NodeId, text: &str, schema: &Json) -> bool {
        let is_outside = !matches!(self.nodes.origin(id), Origin::File | Origin::Default);
        let is_one = is_outside && branch(schema, "integer").is_some() && is_too_large(text);
        if is_one {
            drop(self.report.at(self.nodes, id, "this number is too large"));
        }
        is_one
    }

    /// Returns a hint with the word that was probably intended.
    fn meant_word(&self, id: NodeId, text: &str, known: &[&str]) -> Option<String> {
        let key = match self.nodes.step(id) {
            Step::Key(key) => key.as_str(),
            Step::Root | Step::Entry(_) => "",
        };
        if key == "balance"
            && let Some(hint) = foreign::policy(text)
        {
            return Some(hint.to_owned());
        }
        if let Some(near) = nearest(text, known.iter().copied()) {
            return Some(format!("did you mean {}?", quote(near)));
        }
        let is_path = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
        if key != "health" || !is_path {
            return None;
        }
        let path = match text {
            "http" | "https" | "on" => "healthz",
            _ => text.trim_start_matches('/'),
        };
        Some(match self.nodes.origin(id) {
            Origin::Flag(flag) => format!("a path begins with /: {flag} /{path}"),
            _ if text == "dns" => "health = { dns = \"example.org\" }, with a name to ask for".to_owned(),
            _ => format!("health = {{ http = {} }}", quote(&format!("/{path}"))),
        })
    }

    fn range(&mut self, id: NodeId, integer: i64, schema: &Json) -> bool {
        let least = schema.get("minimum").and_then(Json::as_i64);
        let most = schema.get("maximum").and_then(Json::as_i64);
        if least.is_none_or(|least| integer >= least) && most.is_none_or(|most| integer <= most) {
            return true;
        }
        let wanted = match (least, most) {
            (Some(least), Some(most)) => format!("from {least} to {most}"),
            (Some(least), None) => format!("{least} or more"),
            (None, Some(most)) => format!("{most} or less"),
            (None, None) => return true,
        };
        let shown = if self.nodes.may_be_shown(id) { integer.to_string() } else { "this number".into() };
        drop(self.report.at(self.nodes, id, format!("{shown} is out of range: {wanted}")));
        false
    }

    fn mismatch(&mut self, node: &Node, schema: &Json) {
        if self.report.is_full() {
            drop(self.report.whole(""));
            return;
        }
        if let Value::Text(text) = &node.value
            && self.is_number_too_large(node.id, text, schema)
        {
            return;
        }
        let message = format!("{} is expected here, not {}", expected(schema), found(&node.value));
        let hint = mismatch_hint(&node.value, schema);
        let draft = self.report.at(self.nodes, node.id, message);
        if let Some(hint) = hint {
            drop(draft.hint_from_value(hint));
        }
    }

    /// Reports an unknown key. Returns the key that was probably intended.
    fn unknown<'n>(
        &mut self,
        id: NodeId,
        key: &str,
        known: impl Iterator<Item = &'n str> + Clone,
    ) -> Option<String> {
        if self.report.is_full() {
            drop(self.report.whole(""));
            return None;
        }
        let noun = if self.nodes.parent(id) == Some(Nodes::ROOT) { "section" } else { "key" };
        let message = format!("unknown {noun} {}", quote(key));
        if let Some(meant) = foreign::key(self.nodes, id, key) {
            drop(self.report.at_key(self.nodes, id, message).hint(meant.hint));
            return meant.key.map(str::to_owned);
        }
        let near = nearest(key, known.clone());
        let hint = match near {
            Some(near) => format!("did you mean {}?", quote(near)),
            None => match homes(key, self.root_schema).as_slice() {
                [] => format!("known here: {}", known.collect::<Vec<_>>().join(", ")),
                homes => format!("it belongs in {}", homes.join(" or ")),
            },
        };
        drop(self.report.at_key(self.nodes, id, message).hint(hint));
        near.map(str::to_owned)
    }
}

fn fill_table(table: &mut Table, id: NodeId, nodes: &mut Nodes, schema: &Json) {
    if let Some(inner) = named(schema) {
        for (_, node) in &mut table.entries {
            fill_node(node, nodes, inner);
        }
    }
    for (key, property) in properties(schema).into_iter().flatten() {
        let default = property.get("default");
        if let Some(default) = default
            && table.get(key).is_none()
            && !nodes.is_broken(id, key)
        {
            let child = nodes.add(Some(id), Step::Key(key.clone()), Spans::default(), Origin::Default);
            let value = value_of(default, child, nodes);
            table.push(key.clone(), Node { id: child, value });
        }
        if let Some(node) = table.get_mut(key) {
            fill_node(node, nodes, property);
        }
    }
}

fn fill_node(node: &mut Node, nodes: &mut Nodes, schema: &Json) {
    match &mut node.value {
        Value::Table(table) => {
            if let Some(inner) = branch(schema, "object") {
                fill_table(table, node.id, nodes, inner);
            }
        }
        Value::List(list) => {
            if let Some(items) = branch(schema, "array").and_then(|list| list.get("items")) {
                for entry in list {
                    fill_node(entry, nodes, items);
                }
            }
        }
        _ => {}
    }
}

/// Converts a default of the schema to a value; default tables are empty.
fn value_of(default: &Json, id: NodeId, nodes: &mut Nodes) -> Value {
    match default {
        Json::String(text) => Value::Text(text.clone()),
        Json::Number(number) => Value::Integer(number.as_i64().unwrap_or_default()),
        Json::Bool(switch) => Value::Switch(*switch),
        Json::Array(list) => Value::List(
            list.iter()
                .enumerate()
                .map(|(at, entry)| {
                    let id = nodes.add(Some(id), Step::Entry(at), Spans::default(), Origin::Default);
                    let value = value_of(entry, id, nodes);
                    Node { id, value }
                })
                .collect(),
        ),
        Json::Object(_) | Json::Null => Value::Table(Table::default()),
    }
}

fn collect_secrets(table: &Table, key: &str, nodes: &Nodes, found: &mut Vec<Range<usize>>) {
    for (name, node) in &table.entries {
        match &node.value {
            Value::Table(inner) if name == "set" && key.ends_with("-headers") => {
                found.extend(inner.entries.iter().filter_map(|(_, value)| nodes.value_span(value.id)));
            }
            Value::Table(inner) => collect_secrets(inner, name, nodes, found),
            Value::List(list) => {
                for entry in list {
                    if let Value::Table(inner) = &entry.value {
                        collect_secrets(inner, name, nodes, found);
                    }
                }
            }
            _ => {}
        }
    }
}
