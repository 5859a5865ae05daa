//! Finds values of a document by their path.

use serde_json::Value as Json;
use text::nearest::nearest;
use toml_edit::{InlineTable, Item, Table, Value};

use super::error::EditError;
use super::path::{Path, Quotes, Segment};
use crate::quote::quote;
use crate::schema::{branch, named, properties};

/// Exact step from a value to one inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    /// Number of an entry from 0.
    Entry(usize),
}

impl Step {
    fn is_key(&self) -> bool {
        matches!(self, Self::Key(_))
    }
}

/// A path as far as the document has it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) steps: Vec<Step>,
    /// The number of steps that exist; the others are keys.
    pub(super) existing: usize,
}

impl Found {
    pub(super) fn is_whole(&self) -> bool {
        self.existing == self.steps.len()
    }
}

/// A value in the document.
#[derive(Clone, Copy)]
pub(super) enum View<'a> {
    Item(&'a Item),
    Value(&'a Value),
    Table(&'a Table),
}

/// A value in the document that can be changed.
pub(super) enum Place<'a> {
    Item(&'a mut Item),
    Value(&'a mut Value),
    Table(&'a mut Table),
}

/// Follows a path as far as the document goes.
pub(super) fn find(root: &Table, path: &Path) -> Result<Found, EditError> {
    let segments = path.segments();
    let mut view = View::Table(root);
    let mut steps = Vec::new();
    let mut at = 0;
    while at < segments.len() {
        let rest = &segments[at..];
        let next = match view.kind() {
            Kind::Table => match view.key(&rest[0].text) {
                Some(inner) => (Step::Key(rest[0].text.clone()), inner, 1),
                None => break,
            },
            Kind::List => entry(view, rest).ok_or_else(|| no_entry(view, path, at))?,
            Kind::Single if is_address(view, &steps) => break,
            Kind::Single => {
                let above = display(&segments[..at]);
                return Err(EditError::new(format!(
                    "{above} is a single value: it has no {}",
                    quote(&rest[0].text)
                )));
            }
        };
        let (step, inner, used) = next;
        steps.push(step);
        view = inner;
        at += used;
    }
    let existing = steps.len();
    steps.extend(segments[at..].iter().map(|segment| Step::Key(segment.text.clone())));
    Ok(Found { steps, existing })
}

/// Finds a value that must exist.
pub(super) fn find_existing(root: &Table, path: &Path) -> Result<Vec<Step>, EditError> {
    let found = find(root, path)?;
    if found.is_whole() {
        return Ok(found.steps);
    }
    let missing = &found.steps[found.existing];
    let above = reach_view(root, &found.steps[..found.existing]);
    let near = match (missing, above) {
        (Step::Key(missing), Some(above)) => nearest(missing, above.keys()).map(str::to_owned),
        _ => None,
    };
    let error = EditError::new(format!("{path} is not in the configuration"));
    Err(match near {
        Some(near) => error.hint(format!("did you mean {}?", quote(&near))),
        None => error.hint("`show` has what is there; a key that is not there has its default"),
    })
}

/// A table on the way to a value that is not there, with the name that was probably meant: `set` makes a new table of it.
pub(super) fn meant(root: &Table, path: &Path) -> Option<String> {
    let Found { steps, existing } = find(root, path).ok()?;
    let (above, missing) = (steps.get(..existing)?, steps.get(existing..)?);
    let [Step::Key(missing), _, ..] = missing else { return None };
    let near = nearest(missing, reach_view(root, above)?.keys())?;
    let names = path.segments().get(..=existing).filter(|_| above.iter().all(Step::is_key))?;
    Some(format!("there is no {}: did you mean {}?", display(names), quote(near)))
}

/// Sections in which operators name tables.
const NAMED: [&str; 4] = ["listener", "pool", "acl", "tunnel"];

/// A named section that a change makes on the way to its value, with the one that was probably meant. `roots` are all files.
pub(super) fn beside<'a>(roots: impl Iterator<Item = &'a Table>, path: &Path) -> Option<String> {
    let [section, made, _, ..] = path.segments() else { return None };
    if !NAMED.contains(&section.text.as_str()) {
        return None;
    }
    let names = roots.filter_map(|root| reach_view(root, &[Step::Key(section.text.clone())]));
    let names: Vec<&str> = names.flat_map(|view| view.keys()).collect();
    if names.contains(&made.text.as_str()) {
        return None;
    }
    let (section, made) = (&section.text, &made.text);
    let near = nearest(made, names.iter().copied())?;
    Some(format!("{section}.{made} is new: did you mean {section}.{near}?"))
}

pub(super) fn reach_view<'a>(root: &'a Table, steps: &[Step]) -> Option<View<'a>> {
    steps.iter().try_fold(View::Table(root), |view, step| match step {
        Step::Key(key) => view.key(key),
        Step::Entry(at) => view.entry(*at),
    })
}

pub(super) fn reach<'a>(root: &'a mut Table, steps: &[Step]) -> Option<Place<'a>> {
    let mut place = Place::Table(root);
    for step in steps {
        place = match (place, step) {
            (Place::Table(table) | Place::Item(Item::Table(table)), Step::Key(key)) => {
                Place::Item(table.get_mut(key)?)
            }
            (
                Place::Value(Value::InlineTable(table)) | Place::Item(Item::Value(Value::InlineTable(table))),
                Step::Key(key),
            ) => Place::Value(table.get_mut(key)?),
            (Place::Item(Item::ArrayOfTables(list)), Step::Entry(at)) => Place::Table(list.get_mut(*at)?),
            (
                Place::Value(Value::Array(list)) | Place::Item(Item::Value(Value::Array(list))),
                Step::Entry(at),
            ) => Place::Value(list.get_mut(*at)?),
            _ => return None,
        };
    }
    Some(place)
}

/// Schema of a value.
pub(super) fn schema_of<'s>(root: &'s Json, steps: &[Step]) -> Option<&'s Json> {
    steps.iter().try_fold(root, |schema, step| match step {
        Step::Key(key) => {
            let object = branch(schema, "object")?;
            properties(object).and_then(|known| known.get(key)).or_else(|| named(object))
        }
        Step::Entry(_) => branch(schema, "array")?.get("items"),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Table,
    List,
    Single,
}

impl<'a> View<'a> {
    pub(super) fn kind(self) -> Kind {
        match self {
            View::Table(_) | View::Item(Item::Table(_)) => Kind::Table,
            View::Item(Item::ArrayOfTables(_)) => Kind::List,
            View::Value(value) | View::Item(Item::Value(value)) => match value {
                Value::InlineTable(_) => Kind::Table,
                Value::Array(_) => Kind::List,
                _ => Kind::Single,
            },
            View::Item(Item::None) => Kind::Single,
        }
    }

    fn key(self, key: &str) -> Option<View<'a>> {
        match self {
            View::Table(table) | View::Item(Item::Table(table)) => table.get(key).map(View::Item),
            View::Value(Value::InlineTable(table)) | View::Item(Item::Value(Value::InlineTable(table))) => {
                table.get(key).map(View::Value)
            }
            _ => None,
        }
    }

    fn keys(self) -> Vec<&'a str> {
        match self {
            View::Table(table) | View::Item(Item::Table(table)) => table.iter().map(|(key, _)| key).collect(),
            View::Value(Value::InlineTable(table)) | View::Item(Item::Value(Value::InlineTable(table))) => {
                table.iter().map(|(key, _)| key).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn entry(self, at: usize) -> Option<View<'a>> {
        match self {
            View::Item(Item::ArrayOfTables(list)) => list.get(at).map(View::Table),
            View::Value(Value::Array(list)) | View::Item(Item::Value(Value::Array(list))) => {
                list.get(at).map(View::Value)
            }
            _ => None,
        }
    }

    pub(super) fn len(self) -> usize {
        match self {
            View::Item(Item::ArrayOfTables(list)) => list.len(),
            View::Value(Value::Array(list)) | View::Item(Item::Value(Value::Array(list))) => list.len(),
            _ => 0,
        }
    }

    /// The text by which an entry of a list is named: itself, or its `address`.
    pub(super) fn name(self) -> Option<&'a str> {
        match self {
            View::Value(value) | View::Item(Item::Value(value)) if value.is_str() => value.as_str(),
            table => match table.key("address")? {
                View::Value(value) | View::Item(Item::Value(value)) => value.as_str(),
                _ => None,
            },
        }
    }

    /// The value, with tables in braces.
    pub(super) fn value(self) -> Option<Value> {
        match self {
            View::Value(value) => Some(value.clone()),
            View::Item(item) => item.clone().into_value().ok(),
            View::Table(table) => Some(Value::InlineTable(table.clone().into_inline_table())),
        }
    }
}

/// Finds the entry of a list that the segments name: by its text, in which dots separate segments, or by its number.
fn entry<'a>(list: View<'a>, rest: &[Segment]) -> Option<(Step, View<'a>, usize)> {
    let named = |text: &str| {
        let at = (0..list.len()).find(|at| list.entry(*at).and_then(View::name) == Some(text))?;
        Some((at, list.entry(at)?))
    };
    let bare = rest.iter().take_while(|segment| segment.quotes == Quotes::None).count();
    let by_name = (1..=bare.max(1)).rev().find_map(|used| {
        let text = rest[..used].iter().map(|segment| segment.text.as_str()).collect::<Vec<_>>().join(".");
        named(&text).map(|(at, inner)| (Step::Entry(at), inner, used))
    });
    by_name.or_else(|| {
        let number = rest[0].text.parse::<usize>().ok().filter(|_| rest[0].quotes == Quotes::None)?;
        let at = number.checked_sub(1)?;
        Some((Step::Entry(at), list.entry(at)?, 1))
    })
}

/// Whether a value is the text of a backend, which becomes a table when one of its settings is given.
fn is_address(view: View<'_>, steps: &[Step]) -> bool {
    let items = steps.split_last().and_then(|(last, _)| match last {
        Step::Entry(_) => schema_of(crate::schema::root(), steps),
        Step::Key(_) => None,
    });
    let has_address = items.and_then(|items| branch(items, "object")).and_then(properties);
    has_address.is_some_and(|known| known.contains_key("address")) && view.name().is_some()
}

fn no_entry(list: View<'_>, path: &Path, at: usize) -> EditError {
    let segments = path.segments();
    let (above, wanted) = (display(&segments[..at]), display(&segments[at..]));
    let error = EditError::new(format!("{above} has no entry {}", quote(&wanted)));
    error.hint(entries(list))
}

/// Names the entries of a list for a hint.
pub(super) fn entries(list: View<'_>) -> String {
    const MOST: usize = 8;
    let count = list.len();
    if count == 0 {
        return "the list is empty".to_owned();
    }
    let names = (0..count.min(MOST)).map(|at| match list.entry(at).and_then(View::name) {
        Some(name) => format!("{} {}", at + 1, quote(name)),
        None => match list.entry(at).and_then(View::value) {
            Some(table) => format!("{} {}", at + 1, start_of(&table)),
            None => (at + 1).to_string(),
        },
    });
    let more = if count > MOST { format!(" and {} more", count - MOST) } else { String::new() };
    format!("its entries are {}{more}", names.collect::<Vec<_>>().join(", "))
}

/// The beginning of a table in braces: its first text, which tells entries without a name apart.
fn start_of(table: &Value) -> String {
    let mut pairs = table.as_inline_table().into_iter().flat_map(InlineTable::iter);
    let first = pairs.find_map(|(key, value)| Some((key, value.as_str()?)));
    first.map_or_else(|| "{ ... }".to_owned(), |(key, value)| format!("{{ {key} = {}, ... }}", quote(value)))
}

pub(super) fn display(segments: &[Segment]) -> String {
    segments.iter().map(|segment| segment.text.as_str()).collect::<Vec<_>>().join(".")
}
