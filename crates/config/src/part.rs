//! One part of a loaded configuration: a value or a table, with its source.

use serde_json::{Map, Value as Json, json};
use text::nearest::nearest;

use crate::Loaded;
use crate::edit::path::{Quotes, Segment};
use crate::edit::{Edit, EditError, Path};
use crate::print;
use crate::quote::quote;
use crate::schema::{self, branch, named, properties};
use crate::tree::{Node, NodeId, Nodes, Origin, Table, Value};

/// A part of the configuration, with defaults and what the environment gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// TOML; each line says where its value is from.
    pub text: String,
    pub value: Json,
}

impl Loaded {
    /// Returns the value or table at a path.
    ///
    /// # Errors
    /// The part of the path that does not exist, with the most similar name.
    pub fn part(&self, path: &Path) -> Result<Part, EditError> {
        let Found { name, node, schema } = self.find(path)?;
        let text = print::part(name, node, schema, &self.nodes, &self.places);
        Ok(Part { text, value: json_of(&node.value) })
    }

    /// Returns the whole configuration with its defaults.
    pub fn json(&self) -> Json {
        table_json(&self.root)
    }

    /// Returns the variable of the environment that makes a change without effect.
    pub fn overridden(&self, edit: &Edit) -> Option<&str> {
        overridden(&self.root, &self.nodes, edit)
    }

    /// Returns the variable of the environment that a value came from.
    pub fn variable_at(&self, path: &str) -> Option<&str> {
        let path = Path::parse(path).ok()?;
        variable_of(&self.nodes, find(&self.root, &path).ok()?.node)
    }

    /// Returns the index of the value at a path.
    pub(crate) fn node(&self, path: &Path) -> Option<NodeId> {
        self.find(path).ok().map(|found| found.node.id)
    }

    fn find<'a>(&'a self, path: &'a Path) -> Result<Found<'a>, EditError> {
        find(&self.root, path)
    }
}

/// Returns the variable of the environment that makes a change of a tree without effect.
pub(crate) fn overridden<'a>(root: &Table, nodes: &'a Nodes, edit: &Edit) -> Option<&'a str> {
    let node = find(root, edit.path()).ok()?.node;
    match edit {
        Edit::Set { .. } => variable_in(nodes, node),
        Edit::Add { .. } | Edit::Remove { .. } | Edit::RemoveEntry { .. } => variable_of(nodes, node),
    }
}

fn variable_of<'a>(nodes: &'a Nodes, node: &Node) -> Option<&'a str> {
    match nodes.origin(node.id) {
        Origin::Environment(name) => Some(name),
        _ => None,
    }
}

fn variable_in<'a>(nodes: &'a Nodes, node: &Node) -> Option<&'a str> {
    variable_of(nodes, node).or_else(|| match &node.value {
        Value::Table(table) => table.entries.iter().find_map(|(_, inner)| variable_in(nodes, inner)),
        Value::List(list) => list.iter().find_map(|inner| variable_in(nodes, inner)),
        _ => None,
    })
}

fn find<'a>(root: &'a Table, path: &'a Path) -> Result<Found<'a>, EditError> {
    let segments = path.segments();
    let mut found = step(root, schema::root(), &segments[0])?;
    let mut at = 1;
    while at < segments.len() {
        let rest = &segments[at..];
        let above =
            || segments[..at].iter().map(|segment| segment.text.as_str()).collect::<Vec<_>>().join(".");
        match &found.node.value {
            Value::Table(table) => {
                found = step(table, branch(found.schema, "object").unwrap_or(&Json::Null), &rest[0])?;
                at += 1;
            }
            Value::List(list) => {
                let (node, used) = entry(list, rest).ok_or_else(|| {
                    let error = EditError::new(format!("{} has no entry {}", above(), quote(&rest[0].text)));
                    error.hint(format!("its entries have the numbers 1 to {}", list.len()))
                })?;
                let schema = branch(found.schema, "array").and_then(|list| list.get("items"));
                found = Found { node, schema: schema.unwrap_or(&Json::Null), ..found };
                at += used;
            }
            _ => {
                let message = format!("{} is a single value: it has no {}", above(), quote(&rest[0].text));
                return Err(EditError::new(message));
            }
        }
    }
    Ok(found)
}

struct Found<'a> {
    name: &'a str,
    node: &'a Node,
    schema: &'a Json,
}

fn step<'a>(table: &'a Table, schema: &'a Json, segment: &'a Segment) -> Result<Found<'a>, EditError> {
    let known = properties(schema).and_then(|known| known.get(&segment.text)).or_else(|| named(schema));
    if let Some(node) = table.get(&segment.text) {
        return Ok(Found { name: &segment.text, node, schema: known.unwrap_or(&Json::Null) });
    }
    if known.is_some() && named(schema).is_none() {
        return Err(EditError::new(format!("{} is not set, and has no default", quote(&segment.text))));
    }
    let error = EditError::new(format!("there is no {} in the configuration", quote(&segment.text)));
    let keys = properties(schema).into_iter().flat_map(Map::keys);
    let names = keys.chain(table.entries.iter().map(|(key, _)| key)).map(String::as_str);
    let there: Vec<&str> = table.entries.iter().map(|(key, _)| key.as_str()).take(20).collect();
    Err(match nearest(&segment.text, names) {
        Some(near) => error.hint(format!("did you mean {}?", quote(near))),
        None if there.is_empty() => error,
        None => error.hint(format!("there are {}", there.join(", "))),
    })
}

fn entry<'a>(list: &'a [Node], rest: &[Segment]) -> Option<(&'a Node, usize)> {
    let name = |node: &Node| match &node.value {
        Value::Text(text) => Some(text.clone()),
        Value::Table(table) => match table.get("address").map(|node| &node.value) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    };
    let bare = rest.iter().take_while(|segment| segment.quotes == Quotes::None).count();
    let by_name = (1..=bare.max(1)).rev().find_map(|used| {
        let wanted = rest[..used].iter().map(|segment| segment.text.as_str()).collect::<Vec<_>>().join(".");
        list.iter().find(|node| name(node).as_deref() == Some(&*wanted)).map(|node| (node, used))
    });
    by_name.or_else(|| {
        let number = rest[0].text.parse::<usize>().ok().filter(|_| rest[0].quotes == Quotes::None)?;
        Some((list.get(number.checked_sub(1)?)?, 1))
    })
}

fn json_of(value: &Value) -> Json {
    match value {
        Value::Text(text) | Value::Time(text) => json!(text),
        Value::Integer(integer) => json!(integer),
        Value::Float(float) => json!(float),
        Value::Switch(switch) => json!(switch),
        Value::List(list) => list.iter().map(|node| json_of(&node.value)).collect(),
        Value::Table(table) => table_json(table),
    }
}

fn table_json(table: &Table) -> Json {
    Json::Object(table.entries.iter().map(|(key, node)| (key.clone(), json_of(&node.value))).collect())
}
