//! Environment variables in the configuration: `${NAME}` inside texts, and `PENSTOCK_<PATH>` for single values. Callers
//! pass the environment as a map; nothing here reads it from the process.

use serde_json::Value as Json;

use crate::environment::{Environment, VariableFile};
use crate::error::Report;
use crate::quick;
use crate::quote::quote;
use crate::schema::{branch, named, properties};
use crate::tree::{Node, NodeId, Nodes, Origin, Spans, Step, Table, Value};
use text::nearest::nearest;

/// Variables with the prefix of keys that are not keys. Commands that penstock starts, here or on a host, have
/// `PENSTOCK_WATCHER` in their environment (`hosts::fleet::watcher`), `ssh` has the mark of `Refusal`. The tests of the
/// project read the last four.
const NOT_CONFIGURATION: [&str; 8] = [
    "PENSTOCK_CONFIG",
    "PENSTOCK_LOG",
    hosts::fleet::watcher::VARIABLE,
    hosts::fleet::openssh::Refusal::MARK,
    "PENSTOCK_SEED",
    "PENSTOCK_TEST_ENGINE",
    "PENSTOCK_TEST_WITHOUT_ROOT",
    "PENSTOCK_TEST_WITHOUT_TCX",
];

/// Recognizes variables that Kubernetes sets in every container beside a Service named `penstock`:
/// `PENSTOCK_SERVICE_HOST`, `PENSTOCK_SERVICE_PORT`, `PENSTOCK_SERVICE_PORT_*`, `PENSTOCK_PORT`,
/// `PENSTOCK_PORT_<n>_TCP` and `PENSTOCK_PORT_<n>_TCP_*`. `rest` is the name after the prefix.
fn is_of_kubernetes(rest: &str) -> bool {
    if matches!(rest, "SERVICE_HOST" | "SERVICE_PORT" | "PORT") || rest.starts_with("SERVICE_PORT_") {
        return true;
    }
    let Some((port, protocol)) = rest.strip_prefix("PORT_").and_then(|rest| rest.split_once('_')) else {
        return false;
    };
    port.parse::<u16>().is_ok() && (protocol == "TCP" || protocol.starts_with("TCP_"))
}

const PREFIX: &str = "PENSTOCK_";

/// Unknown variables that get a warning each; the others get one together.
const MOST_WARNINGS: usize = 10;

/// Ending of variables whose value is the path of a file with the value.
const FILE: &str = "_FILE";

/// Variables that were laid over a file.
pub(crate) struct Overlay {
    /// Variables that name no key: other programs may have set them.
    pub(crate) unknown: Vec<String>,
    pub(crate) files: Vec<VariableFile>,
}

/// Inserts the values of `PENSTOCK_<PATH>` into the tree, and those in the files that `PENSTOCK_<PATH>_FILE` name. PATH
/// is in capitals, with `_` for other characters.
pub(crate) fn lay_over(
    root: &mut Table,
    nodes: &mut Nodes,
    schema: &Json,
    env: &Environment,
    report: &mut Report,
) -> Overlay {
    let (mut unknown, mut files) = (Vec::new(), Vec::new());
    for (name, text) in env.variables.range(PREFIX.to_owned()..) {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            break;
        };
        let known = |name: &&str| **name == *rest;
        if NOT_CONFIGURATION.contains(&name.as_str())
            || quick::VARIABLES.iter().any(known)
            || is_of_kubernetes(rest)
        {
            continue;
        }
        let mut targets = Vec::new();
        find(rest, schema, Some(Inner::Table(root)), &mut Vec::new(), &mut targets);
        let mut text = std::borrow::Cow::Borrowed(text.as_str());
        if let (true, Some(rest)) = (targets.is_empty(), rest.strip_suffix(FILE)) {
            find(rest, schema, Some(Inner::Table(root)), &mut Vec::new(), &mut targets);
            if !targets.is_empty() {
                let plain = format!("{PREFIX}{rest}");
                let content = match env.get(&plain) {
                    Some(_) => Err(format!("and {plain} are both set: remove one of them")),
                    None => env.content(&text),
                };
                files.push(VariableFile { variable: name.clone(), path: text.as_ref().into() });
                match content {
                    Ok(content) => text = content.into(),
                    Err(why) => {
                        drop(report.outside(format!("environment {name}"), why));
                        continue;
                    }
                }
            }
        }
        match targets.as_slice() {
            [] => {
                if unknown.len() < MOST_WARNINGS {
                    let hint = suggestion(rest, schema, root);
                    let draft = report.outside(format!("environment {name}"), "this variable names no key");
                    drop(draft.hint(hint).warning());
                }
                unknown.push(name.clone());
            }
            [(path, schema)] => {
                if let Err(at) = set(root, nodes, path, name, &text, schema) {
                    let message =
                        format!("{at} is not a table in the file: this variable cannot set a key in it");
                    drop(report.outside(format!("environment {name}"), message));
                }
            }
            many => {
                let paths: Vec<_> = many.iter().map(|(path, _)| path.join(".")).collect();
                let message =
                    format!("the name of this variable is ambiguous: it means {}", paths.join(" or "));
                let hint = "rename one of them in the file";
                drop(report.outside(format!("environment {name}"), message).hint(hint));
            }
        }
    }
    if let Some(more) = unknown.len().checked_sub(MOST_WARNINGS).filter(|more| *more > 0) {
        let message = format!("{more} more variables that begin with {PREFIX} name no key");
        drop(report.outside("environment".to_owned(), message).warning());
    }
    Overlay { unknown, files }
}

/// Uses the first directory of StateDirectory= (systemd.exec(5)), unless the file names a state directory.
pub(crate) fn take_state_directory(root: &mut Table, nodes: &mut Nodes, env: &Environment) {
    const NAME: &str = "STATE_DIRECTORY";
    let path = ["process".to_owned(), "state-directory".to_owned()];
    let is_given = match root.get(&path[0]).map(|node| &node.value) {
        None => false,
        Some(Value::Table(process)) => process.get(&path[1]).is_some(),
        // `shape.rs` refuses a section that is not a table.
        Some(_) => true,
    };
    let first = env.get(NAME).and_then(|list| list.split(':').next()).filter(|first| !first.is_empty());
    if let Some(first) = first.filter(|_| !is_given) {
        // `set` fails only for a section that is not a table.
        let _ = set(root, nodes, &path, NAME, first, &Json::Null);
    }
}

/// Replaces `${NAME}` and `${NAME:-default}` in every text of the file; `$${` is an escaped `${`. Returns the files that
/// variables named.
pub(crate) fn substitute(
    root: &mut Table,
    nodes: &mut Nodes,
    env: &Environment,
    report: &mut Report,
) -> Vec<VariableFile> {
    let mut substitution = Substitution { nodes, env, report, files: Vec::new() };
    substitution.table(root, Nodes::ROOT);
    substitution.files
}

/// Converts the text of a variable to the type in the schema.
pub(crate) fn convert(text: &str, schema: &Json) -> Value {
    let trimmed = text.trim();
    if branch(schema, "integer").is_some()
        && let Ok(integer) = trimmed.parse()
    {
        return Value::Integer(integer);
    }
    if branch(schema, "boolean").is_some()
        && let Ok(switch) = trimmed.parse()
    {
        return Value::Switch(switch);
    }
    if branch(schema, "number").is_some()
        && let Ok(number) = trimmed.parse()
    {
        return Value::Float(number);
    }
    Value::Text(text.to_owned())
}

/// Collects the keys that match `rest`, the name of a variable after its prefix.
fn find<'s>(
    rest: &str,
    schema: &'s Json,
    inner: Option<Inner<'_>>,
    path: &mut Vec<String>,
    targets: &mut Vec<(Vec<String>, &'s Json)>,
) {
    if let Some(Inner::List(list)) = inner {
        for (place, node) in (1..).zip(list) {
            let number = format!("{place}_");
            if let (Some(after), Value::Table(entry)) = (rest.strip_prefix(&number), &node.value) {
                path.push(place.to_string());
                find(after, schema, Some(Inner::Table(entry)), path, targets);
                path.pop();
            }
        }
        return;
    }
    let table = match inner {
        Some(Inner::Table(table)) => Some(table),
        _ => None,
    };
    let mut step = |key: &str, inner_schema: &'s Json, targets: &mut Vec<_>| {
        let Some(after) = rest.strip_prefix(capitals(key).as_str()) else {
            return;
        };
        let node = table.and_then(|table| table.get(key));
        path.push(key.to_owned());
        if after.is_empty() && is_settable(inner_schema) {
            targets.push((path.clone(), inner_schema));
        } else if let Some(after) = after.strip_prefix('_')
            && let Some(object) = branch(inner_schema, "object").or_else(|| tables(inner_schema))
        {
            let inner = match node.map(|node| &node.value) {
                Some(Value::Table(table)) => Some(Inner::Table(table)),
                Some(Value::List(list)) => Some(Inner::List(list)),
                _ => None,
            };
            if inner.is_some() || tables(inner_schema).is_none() {
                find(after, object, inner, path, targets);
            }
        }
        path.pop();
    };
    for (key, property) in properties(schema).into_iter().flatten() {
        step(key, property, targets);
    }
    if let Some(inner) = named(schema) {
        for (key, _) in table.map(|table| table.entries.as_slice()).unwrap_or_default() {
            step(key, inner, targets);
        }
    }
}

/// What a variable can reach into: a table, or a list whose tables have the numbers 1, 2 and so on.
#[derive(Clone, Copy)]
enum Inner<'a> {
    Table(&'a Table),
    List(&'a [Node]),
}

/// Schema of the tables of a list, such as `route`.
fn tables(schema: &Json) -> Option<&Json> {
    branch(branch(schema, "array")?.get("items")?, "object")
}

/// Accepts keys whose whole value fits into one text: no tables and no lists of tables.
fn is_settable(schema: &Json) -> bool {
    ["string", "integer", "number", "boolean"].iter().any(|kind| branch(schema, kind).is_some())
        || takes_texts(schema)
}

fn takes_texts(schema: &Json) -> bool {
    let items = branch(schema, "array").and_then(|list| list.get("items"));
    items.is_some_and(|items| branch(items, "string").is_some())
}

fn set(
    root: &mut Table,
    nodes: &mut Nodes,
    path: &[String],
    name: &str,
    text: &str,
    schema: &Json,
) -> Result<(), String> {
    let origin = || Origin::Environment(name.to_owned());
    let mut table = root;
    let mut parent = Nodes::ROOT;
    let Some((last, tables)) = path.split_last() else {
        return Ok(());
    };
    let mut tables = tables.iter();
    while let Some(key) = tables.next() {
        if table.get(key).is_none() {
            let id = nodes.add(Some(parent), Step::Key(key.clone()), Spans::default(), origin());
            table.push(key.clone(), Node { id, value: Value::Table(Table::default()) });
        }
        let Some(mut node) = table.get_mut(key) else { return Ok(()) };
        if matches!(node.value, Value::List(_)) {
            let place = tables.next().and_then(|number| number.parse::<usize>().ok()).unwrap_or(0);
            let at = nodes.path(node.id);
            let Value::List(list) = &mut node.value else { return Ok(()) };
            node = place.checked_sub(1).and_then(|place| list.get_mut(place)).ok_or(at)?;
        }
        match node {
            Node { id, value: Value::Table(inner) } => {
                parent = *id;
                table = inner;
            }
            Node { id, .. } => return Err(nodes.path(*id)),
        }
    }
    let id = nodes.add(Some(parent), Step::Key(last.clone()), Spans::default(), origin());
    let mut value = convert(text, schema);
    let has_list = takes_texts(schema) && (branch(schema, "string").is_none() || text.contains(','));
    if has_list && matches!(value, Value::Text(_)) {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).enumerate();
        let entries = entries.map(|(at, entry)| {
            let id = nodes.add(Some(id), Step::Entry(at), Spans::default(), origin());
            Node { id, value: Value::Text(entry.to_owned()) }
        });
        value = Value::List(entries.collect());
    }
    match table.get_mut(last) {
        // An option of the command line wins over the environment.
        Some(node) if matches!(nodes.origin(node.id), Origin::Flag(_)) => {}
        Some(node) => *node = Node { id, value },
        None => table.push(last.clone(), Node { id, value }),
    }
    Ok(())
}

fn capitals(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// Suggests the valid variable name most similar to `rest`.
fn suggestion(rest: &str, schema: &Json, root: &Table) -> String {
    let mut names = Vec::new();
    collect_names(schema, Some(root), &mut String::new(), &mut names);
    match nearest(rest, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {PREFIX}{near}?"),
        None => "variables are named after keys and the names in the file: PENSTOCK_LISTENER_WEB_BIND".into(),
    }
}

fn collect_names(schema: &Json, table: Option<&Table>, prefix: &mut String, names: &mut Vec<String>) {
    const MOST: usize = 5000;
    let mut step = |key: &str, inner: &Json, names: &mut Vec<String>| {
        if names.len() >= MOST {
            return;
        }
        let before = prefix.len();
        prefix.push_str(&capitals(key));
        if is_settable(inner) {
            names.push(prefix.clone());
        }
        if let Some(object) = branch(inner, "object") {
            let table = match table.and_then(|table| table.get(key)).map(|node| &node.value) {
                Some(Value::Table(table)) => Some(table),
                _ => None,
            };
            prefix.push('_');
            collect_names(object, table, prefix, names);
        }
        prefix.truncate(before);
    };
    for (key, property) in properties(schema).into_iter().flatten() {
        step(key, property, names);
    }
    if let Some(inner) = named(schema) {
        for (key, _) in table.map(|table| table.entries.as_slice()).unwrap_or_default().iter().take(MOST) {
            step(key, inner, names);
        }
    }
}

struct Substitution<'a> {
    nodes: &'a mut Nodes,
    env: &'a Environment,
    report: &'a mut Report,
    files: Vec<VariableFile>,
}

impl Substitution<'_> {
    fn table(&mut self, table: &mut Table, id: NodeId) {
        table.entries.retain_mut(|(key, node)| {
            let keep = self.node(node);
            if !keep {
                self.nodes.mark_broken(id, key);
            }
            keep
        });
    }

    /// Substitutes the variables of a value. `false` if the value must be removed, because a variable is unset.
    fn node(&mut self, node: &mut Node) -> bool {
        match &mut node.value {
            Value::Table(table) => {
                self.table(table, node.id);
                true
            }
            Value::List(list) => {
                let given = list.len();
                list.retain_mut(|entry| self.node(entry));
                if list.len() < given {
                    self.nodes.mark_incomplete(node.id);
                }
                true
            }
            Value::Text(text) if text.contains("${") && *self.nodes.origin(node.id) == Origin::File => {
                match expand(text, self.env, &mut self.files) {
                    Ok(Expanded { text: expanded, variables }) => {
                        if variables == Variables::Some {
                            self.nodes.set_origin(node.id, Origin::Substituted(std::mem::take(text)));
                        }
                        *text = expanded;
                        true
                    }
                    Err(unset) => {
                        let (message, hint) = unset.message_and_hint();
                        drop(self.report.at(self.nodes, node.id, message).hint(hint));
                        false
                    }
                }
            }
            _ => true,
        }
    }
}

struct Expanded {
    text: String,
    variables: Variables,
}

#[derive(PartialEq, Eq)]
enum Variables {
    None,
    Some,
}

enum Unusable {
    Unset(String),
    /// The variable that names a file, and why that file is not used.
    File(String, String),
    Unclosed,
    Name(String),
}

impl Unusable {
    fn message_and_hint(self) -> (String, String) {
        match self {
            Unusable::Unset(name) => (
                format!("the environment variable {name} is not set"),
                format!("set it or {name}{FILE}, or give a default: ${{{name}:-...}}"),
            ),
            Unusable::File(name, why) => (
                format!("the environment variable {name} {why}"),
                "name a file that this user may read".into(),
            ),
            Unusable::Unclosed => {
                ("the } of a variable is missing".into(), "write ${NAME}; for a plain ${ write $${".into())
            }
            Unusable::Name(name) => (
                format!("{} is not the name of a variable", quote(&name)),
                "write ${NAME}; for a plain ${ write $${".into(),
            ),
        }
    }
}

fn expand(text: &str, env: &Environment, files: &mut Vec<VariableFile>) -> Result<Expanded, Unusable> {
    let mut out = String::with_capacity(text.len());
    let mut variables = Variables::None;
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let inside = &rest[at + 2..];
        let end = inside.find('}').ok_or(Unusable::Unclosed)?;
        let (name, default) = match inside[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&inside[..end], None),
        };
        let valid = |name: &str| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
        };
        if !valid(name) {
            return Err(Unusable::Name(name.to_owned()));
        }
        // As in a shell, the default after `:-` also replaces an empty variable.
        let value = match (env.get(name), default) {
            (Some(""), Some(default)) => default,
            (Some(value), _) => value,
            (None, Some(default)) => default,
            (None, None) => {
                let of_file = format!("{name}{FILE}");
                let path = env.get(&of_file).ok_or_else(|| Unusable::Unset(name.to_owned()))?;
                out.push_str(&env.content(path).map_err(|why| Unusable::File(of_file.clone(), why))?);
                files.push(VariableFile { variable: of_file, path: path.into() });
                ""
            }
        };
        out.push_str(value);
        variables = Variables::Some;
        rest = &inside[end + 1..];
    }
    out.push_str(rest);
    Ok(Expanded { text: out, variables })
}
