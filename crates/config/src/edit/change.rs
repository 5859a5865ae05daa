//! `set` and `add` on a parsed document.

use serde_json::Value as Json;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

use super::error::EditError;
use super::find::{Kind, Place, Step, find, reach, reach_view, schema_of};
use super::list;
use super::path::Path;
use super::value;
use crate::schema::{self, branch, named};

pub(super) fn set(document: &mut DocumentMut, path: &Path, text: &str) -> Result<(), EditError> {
    let found = find(document.as_table(), path)?;
    let new = value::parse(text, schema_of(schema::root(), &found.steps))?;
    if found.is_whole() {
        replace(document.as_table_mut(), &found.steps, new, path)
    } else {
        insert(document.as_table_mut(), &found.steps, found.existing, new, path)
    }
}

pub(super) fn add(document: &mut DocumentMut, path: &Path, text: &str) -> Result<(), EditError> {
    let found = find(document.as_table(), path)?;
    if let (true, Some((Step::Entry(at), list))) = (found.is_whole(), found.steps.split_last()) {
        let new = value::parse(text, schema_of(schema::root(), &found.steps))?;
        return add_before(document.as_table_mut(), list, *at, new, path);
    }
    let schema = schema_of(schema::root(), &found.steps);
    let list = schema.and_then(|schema| branch(schema, "array"));
    let items = list.and_then(|list| list.get("items"));
    if !found.is_whole() {
        let Some(list_schema) = list else {
            let new = value::parse(text, schema)?;
            let is_table = schema.is_none_or(|schema| branch(schema, "object").is_some());
            if !is_table || !new.is_inline_table() {
                return Err(no_list(path));
            }
            return insert(document.as_table_mut(), &found.steps, found.existing, new, path);
        };
        // The default would be lost: the list begins with it.
        let default = [list_schema.get("default"), schema.and_then(|schema| schema.get("default"))];
        let default = default.into_iter().flatten().find_map(Json::as_array);
        let mut entries: Array = default.into_iter().flatten().filter_map(Json::as_str).collect();
        list::push(&mut entries, value::parse(text, items)?);
        return insert(document.as_table_mut(), &found.steps, found.existing, Value::Array(entries), path);
    }
    let new = value::parse(text, items)?;
    let view = reach_view(document.as_table(), &found.steps);
    let kind = view.map_or(Kind::Single, |view| view.kind());
    if kind == Kind::Table {
        return Err(
            EditError::new(format!("{path} exists already")).hint("`set` replaces it, or one of its keys")
        );
    }
    match reach(document.as_table_mut(), &found.steps) {
        Some(Place::Item(Item::ArrayOfTables(entries))) => match new {
            Value::InlineTable(table) => entries.push(table_of(table)),
            _ => return Err(no_table(path)),
        },
        Some(Place::Item(Item::Value(Value::Array(entries))) | Place::Value(Value::Array(entries))) => {
            list::push(entries, new);
        }
        Some(Place::Item(Item::Value(single)) | Place::Value(single)) if list.is_some() => {
            let mut entries = Array::new();
            *entries.decor_mut() = single.decor().clone();
            single.decor_mut().clear();
            entries.push_formatted(single.clone());
            list::push(&mut entries, new);
            *single = Value::Array(entries);
        }
        _ => return Err(no_list(path)),
    }
    Ok(())
}

/// Puts a new entry of a list before that with this number.
fn add_before(root: &mut Table, list: &[Step], at: usize, new: Value, path: &Path) -> Result<(), EditError> {
    match reach(root, list) {
        Some(Place::Item(Item::Value(Value::Array(entries))) | Place::Value(Value::Array(entries))) => {
            list::put_before(entries, at, new);
            Ok(())
        }
        _ => Err(EditError::new(format!("{path} is a section of its own: nothing can be put before it"))
            .hint("without the number the new one comes last; the order is that of the file")),
    }
}

fn no_list(path: &Path) -> EditError {
    let new = match path.segments().first().map(|first| first.text.as_str()) {
        Some("acl") => {
            "access list: add acl.NAME '{ entries = [\"deny 192.0.2.0/24\"], default = \"permit\" }'"
        }
        _ => "pool: add pool.NAME '{ backends = [\"ADDRESS\"] }'",
    };
    EditError::new(format!("{path} is neither a list nor a new table in braces: nothing can be added to it"))
        .hint(format!("`set` gives a key its value; a new {new}"))
}

fn no_table(path: &Path) -> EditError {
    EditError::new(format!("an entry of {path} is a table"))
        .hint("write it in braces, as in '{ host = \"x\", pool = \"app\" }'")
}

/// Gives an existing value another one. Comments around it stay.
fn replace(root: &mut Table, steps: &[Step], new: Value, path: &Path) -> Result<(), EditError> {
    let sections = schema_of(schema::root(), steps).is_some_and(is_list_of_sections);
    match reach(root, steps) {
        Some(Place::Value(old) | Place::Item(Item::Value(old))) => put(old, new),
        Some(Place::Table(table) | Place::Item(Item::Table(table))) => match new {
            Value::InlineTable(new) => {
                table.clear();
                fill(table, new);
            }
            _ => return Err(no_table(path)),
        },
        Some(Place::Item(item)) => match new {
            Value::Array(entries)
                if sections && entries.iter().all(Value::is_inline_table) && !entries.is_empty() =>
            {
                if let Item::ArrayOfTables(list) = item {
                    refill(list, entries);
                }
            }
            new => *item = Item::Value(new),
        },
        None => return Err(EditError::new(format!("{path} is not in the configuration"))),
    }
    Ok(())
}

fn put(old: &mut Value, mut new: Value) {
    *new.decor_mut() = old.decor().clone();
    *old = new;
}

/// Replaces entries of a list of sections; those that stay keep their comments.
fn refill(list: &mut ArrayOfTables, entries: Array) {
    while list.len() > entries.len() {
        list.remove(list.len() - 1);
    }
    for (at, entry) in entries.into_iter().enumerate() {
        let Value::InlineTable(entry) = entry else { continue };
        match list.get_mut(at) {
            Some(table) => {
                table.clear();
                fill(table, entry);
            }
            None => list.push(table_of(entry)),
        }
    }
}

/// Inserts a value whose last steps do not exist.
fn insert(
    root: &mut Table,
    steps: &[Step],
    existing: usize,
    new: Value,
    path: &Path,
) -> Result<(), EditError> {
    let missing = || EditError::new(format!("{path} cannot be made"));
    let Some((Step::Key(last), above)) = steps.split_last() else { return Err(missing()) };
    for made in existing..above.len() {
        let Step::Key(key) = &above[made] else { return Err(missing()) };
        let table = match style(&above[..=made]) {
            Style::Names => {
                let mut table = Table::new();
                table.set_implicit(true);
                table
            }
            Style::Section => Table::new(),
            Style::Inside => {
                let mut table = Table::new();
                table.set_dotted(true);
                table
            }
        };
        let place = reach(root, &above[..made]).ok_or_else(missing)?;
        put_new(place, key, Item::Table(table)).ok_or_else(missing)?;
    }
    let item = match (new, style(steps)) {
        (Value::InlineTable(new), Style::Section) => Item::Table(table_of(new)),
        (Value::Array(entries), _) if schema_of(schema::root(), steps).is_some_and(is_list_of_sections) => {
            let item = Item::Value(Value::Array(entries));
            match item.into_array_of_tables() {
                Ok(mut tables) => {
                    for table in tables.iter_mut() {
                        table.decor_mut().clear();
                    }
                    Item::ArrayOfTables(tables)
                }
                Err(item) => item,
            }
        }
        (new, _) => Item::Value(new),
    };
    let place = reach(root, above).ok_or_else(missing)?;
    put_new(place, last, item).ok_or_else(missing)
}

/// Puts a new key into a table. `None` if the place is no table.
fn put_new(place: Place<'_>, key: &str, item: Item) -> Option<()> {
    match place {
        Place::Table(table) | Place::Item(Item::Table(table)) => {
            table.insert(key, item);
        }
        Place::Value(Value::InlineTable(table)) | Place::Item(Item::Value(Value::InlineTable(table))) => {
            list::insert(table, key, item.into_value().ok()?);
        }
        // The text of a backend becomes a table.
        Place::Value(address) | Place::Item(Item::Value(address)) if address.is_str() => {
            let mut table = InlineTable::new();
            *table.decor_mut() = address.decor().clone();
            address.decor_mut().clear();
            table.insert("address", address.clone());
            table.insert(key, item.into_value().ok()?);
            *address = Value::InlineTable(table);
        }
        _ => return None,
    }
    Some(())
}

/// How a table that is made is written.
#[derive(Clone, Copy)]
enum Style {
    /// Only the tables in it have headers: `[pool.NAME]`.
    Names,
    /// With a header.
    Section,
    /// In the section around it: `timeouts.connect = "2s"`, or in braces.
    Inside,
}

fn style(steps: &[Step]) -> Style {
    let named_at = |depth: usize| {
        let schema = schema_of(schema::root(), &steps[..depth]);
        schema.and_then(|schema| branch(schema, "object")).is_some_and(|object| named(object).is_some())
    };
    match steps.len() {
        1 if named_at(1) => Style::Names,
        1 => Style::Section,
        2 if named_at(1) => Style::Section,
        _ => Style::Inside,
    }
}

/// Reports whether entries of a list have headers: `[[listener.web.route]]`.
fn is_list_of_sections(schema: &Json) -> bool {
    let items = branch(schema, "array").and_then(|list| list.get("items"));
    items.is_some_and(|items| branch(items, "string").is_none() && branch(items, "object").is_some())
}

fn table_of(from: InlineTable) -> Table {
    let mut table = Table::new();
    fill(&mut table, from);
    table
}

fn fill(table: &mut Table, from: InlineTable) {
    for (key, mut value) in from {
        value.decor_mut().clear();
        table.insert(&key, Item::Value(value));
    }
}
