//! `remove` on a parsed document.

use toml_edit::{ArrayOfTables, DocumentMut, Item, Key, RawString, Table, Value};

use super::error::EditError;
use super::find::{Kind, Place, Step, View, entries, find_existing, reach, reach_view};
use super::list;
use super::path::Path;
use super::value;
use crate::quote::quote;

/// Removes a key, a table or an entry.
pub(super) fn remove(document: &mut DocumentMut, path: &Path) -> Result<(), EditError> {
    let steps = find_existing(document.as_table(), path)?;
    take(document, &steps);
    Ok(())
}

/// Removes the entry of a list that has this value, or this `address`.
pub(super) fn remove_entry(document: &mut DocumentMut, path: &Path, text: &str) -> Result<(), EditError> {
    let mut steps = find_existing(document.as_table(), path)?;
    let Some(list) = reach_view(document.as_table(), &steps) else { return Ok(()) };
    let wanted = value::parse(text, None)?;
    let is_wanted = |entry: View<'_>| {
        entry.name() == Some(wanted.as_str().unwrap_or(text))
            || entry.value().is_some_and(|entry| value::equal(&entry, &wanted))
    };
    match list.kind() {
        Kind::List => {}
        // `bind = ":80"` is a list of one.
        Kind::Single if is_wanted(list) => {
            take(document, &steps);
            return Ok(());
        }
        Kind::Single => return Err(EditError::new(format!("{path} is not {}", quote(text)))),
        Kind::Table => {
            return Err(EditError::new(format!("{path} is a table: it has no entry {}", quote(text)))
                .hint(format!("`remove {path}` removes all of it, `remove {path}.KEY` one key")));
        }
    }
    let found: Vec<usize> = (0..list.len()).filter(|at| list.entry(*at).is_some_and(is_wanted)).collect();
    match found[..] {
        [at] => {
            steps.push(Step::Entry(at));
            take(document, &steps);
            Ok(())
        }
        [] => Err(EditError::new(format!("{path} has no entry {}", quote(text))).hint(entries(list))),
        _ => Err(EditError::new(format!("{path} has {} entries {}", found.len(), quote(text)))
            .hint(format!("`remove {path}.{}` removes one of them", found[0] + 1))),
    }
}

fn take(document: &mut DocumentMut, steps: &[Step]) {
    let Some((last, above)) = steps.split_last() else { return };
    let position = last_position(document.as_table(), steps);
    let mut kept = None;
    let mut is_empty = false;
    match (reach(document.as_table_mut(), above), last) {
        (Some(Place::Table(table) | Place::Item(Item::Table(table))), Step::Key(key)) => {
            let next = table.iter().skip_while(|(other, _)| other != key).nth(1);
            let next = next.filter(|(_, item)| item.is_value()).map(|(next, _)| next.to_owned());
            if let Some((key, item)) = table.remove_entry(key) {
                kept = comments_of(&key, &item);
                // In the same section, the comments stay above the key that follows.
                if let (true, Some(comments), Some(mut next)) =
                    (item.is_value(), kept.clone(), next.and_then(|next| table.key_mut(&next)))
                {
                    let prefix = put_above(&comments, next.leaf_decor().prefix(), "");
                    next.leaf_decor_mut().set_prefix(prefix);
                    kept = None;
                }
            }
        }
        (
            Some(
                Place::Value(Value::InlineTable(table)) | Place::Item(Item::Value(Value::InlineTable(table))),
            ),
            Step::Key(key),
        ) => list::take(table, key),
        (
            Some(Place::Value(Value::Array(entries)) | Place::Item(Item::Value(Value::Array(entries)))),
            Step::Entry(at),
        ) => list::remove(entries, *at),
        (Some(Place::Item(Item::ArrayOfTables(tables))), Step::Entry(at)) => {
            kept = tables.remove_comments(*at);
            is_empty = tables.is_empty();
        }
        _ => {}
    }
    if is_empty
        && let Some((Step::Key(key), above)) = above.split_last()
        && let Some(Place::Table(table) | Place::Item(Item::Table(table))) =
            reach(document.as_table_mut(), above)
    {
        table.remove(key);
    }
    if let Some(kept) = kept {
        carry(document, position, &kept);
    }
}

trait RemoveComments {
    /// Removes a table, and returns the comments above it that are about more.
    fn remove_comments(&mut self, at: usize) -> Option<String>;
}

impl RemoveComments for ArrayOfTables {
    fn remove_comments(&mut self, at: usize) -> Option<String> {
        comments_above(self.remove(at).decor().prefix())
    }
}

fn comments_of(key: &Key, item: &Item) -> Option<String> {
    match item {
        Item::Table(table) if !table.is_dotted() => comments_above(table.decor().prefix()),
        Item::ArrayOfTables(tables) => tables.get(0).and_then(|table| comments_above(table.decor().prefix())),
        _ => comments_above(key.leaf_decor().prefix()),
    }
}

/// The comments that an empty line separates from what is removed: they are about the file, or about what follows.
fn comments_above(prefix: Option<&RawString>) -> Option<String> {
    let prefix = prefix?.as_str()?;
    let kept = &prefix[..prefix.rfind("\n\n")? + 1];
    kept.contains('#').then(|| kept.to_owned())
}

/// Position of the last header of what is removed.
fn last_position(root: &Table, steps: &[Step]) -> Option<isize> {
    let around = (0..=steps.len()).rev().find_map(|depth| match reach_view(root, &steps[..depth])? {
        View::Table(table) | View::Item(Item::Table(table)) => table.position(),
        View::Item(Item::ArrayOfTables(tables)) => tables.iter().filter_map(Table::position).max(),
        _ => None,
    });
    around.or(Some(-1))
}

/// Puts comments above the next header, or at the end of the file.
fn carry(document: &mut DocumentMut, position: Option<isize>, comments: &str) {
    let mut positions = Vec::new();
    collect(document.as_table(), &mut positions);
    let next = positions.into_iter().filter(|at| Some(*at) > position).min();
    match next.and_then(|next| at_position(document.as_table_mut(), next)) {
        Some(table) => {
            let prefix = put_above(comments, table.decor().prefix(), "\n");
            table.decor_mut().set_prefix(prefix);
        }
        None => {
            let rest = document.trailing().as_str().unwrap_or_default();
            let trailing = format!("{comments}{rest}");
            document.set_trailing(trailing);
        }
    }
}

/// Puts comments before those that a value has already, with an empty line between them.
fn put_above(comments: &str, prefix: Option<&RawString>, default: &str) -> String {
    let rest = prefix.and_then(RawString::as_str).unwrap_or(default);
    let empty = if rest.starts_with('\n') { "" } else { "\n" };
    format!("{comments}{empty}{rest}")
}

fn collect(table: &Table, positions: &mut Vec<isize>) {
    for (_, item) in table {
        match item {
            Item::Table(inner) => {
                positions.extend(inner.position().filter(|_| !inner.is_dotted() && !inner.is_implicit()));
                collect(inner, positions);
            }
            Item::ArrayOfTables(tables) => {
                for inner in tables {
                    positions.extend(inner.position());
                    collect(inner, positions);
                }
            }
            _ => {}
        }
    }
}

fn at_position(table: &mut Table, position: isize) -> Option<&mut Table> {
    table.iter_mut().find_map(|(_, item)| match item {
        Item::Table(inner) => within(inner, position),
        Item::ArrayOfTables(tables) => tables.iter_mut().find_map(|inner| within(inner, position)),
        _ => None,
    })
}

fn within(table: &mut Table, position: isize) -> Option<&mut Table> {
    if is_at(table, position) { Some(table) } else { at_position(table, position) }
}

fn is_at(table: &Table, position: isize) -> bool {
    table.position() == Some(position) && !table.is_dotted() && !table.is_implicit()
}
