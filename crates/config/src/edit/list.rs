//! Layout of lists and of tables in braces. A comment behind an entry belongs to it; the parser keeps that comment
//! with what follows.

use toml_edit::{Array, InlineTable, RawString, Value};

/// Appends an entry, on a line of its own if the others are.
pub(super) fn push(list: &mut Array, mut new: Value) {
    let Some(last) = list.len().checked_sub(1) else {
        new.decor_mut().clear();
        list.push_formatted(new);
        return;
    };
    // Between the last entry and the bracket: its comment, and the white space before the bracket.
    let end = match list.trailing_comma() {
        true => text(Some(list.trailing())),
        false => {
            let suffix = list.get(last).map_or_else(String::new, |last| text(last.decor().suffix()));
            suffix + &text(Some(list.trailing()))
        }
    };
    let first = list.get(0).map_or_else(String::new, |first| text(first.decor().prefix()));
    if !end.contains('\n') && !first.contains('\n') {
        new.decor_mut().set_prefix(" ");
        new.decor_mut().set_suffix("");
        if !list.trailing_comma()
            && let Some(last) = list.get_mut(last)
        {
            last.decor_mut().set_suffix("");
            new.decor_mut().set_suffix(end);
            list.set_trailing("");
        }
        list.push_formatted(new);
        return;
    }
    let (head, tail) = end.split_at(end.find('\n').unwrap_or(end.len()));
    let indent = first.rsplit_once('\n').map_or("  ", |(_, indent)| indent);
    new.decor_mut().set_prefix(format!("{head}\n{indent}"));
    new.decor_mut().set_suffix("");
    if let Some(last) = list.get_mut(last) {
        last.decor_mut().set_suffix("");
    }
    list.push_formatted(new);
    list.set_trailing(if tail.is_empty() { "\n" } else { tail });
    list.set_trailing_comma(true);
}

/// Puts an entry before another one, on a line of its own if that has one. Comments stay with their entries.
pub(super) fn put_before(list: &mut Array, at: usize, mut new: Value) {
    let before = list.get(at).map_or_else(String::new, |entry| text(entry.decor().prefix()));
    // The comment behind the entry before comes first, then the comments above this one.
    let (mine, others) = match before.find('\n') {
        Some(line) => {
            let indent = before.rsplit_once('\n').map_or("", |(_, indent)| indent);
            (format!("{}\n{indent}", &before[..line]), before[line..].to_owned())
        }
        None if at == 0 => (before, " ".to_owned()),
        None => (before.clone(), before),
    };
    new.decor_mut().set_prefix(mine);
    new.decor_mut().set_suffix("");
    if let Some(entry) = list.get_mut(at) {
        entry.decor_mut().set_prefix(others);
    }
    list.insert_formatted(at, new);
}

/// Removes an entry with the comment behind it and the lines of comments directly above it.
pub(super) fn remove(list: &mut Array, at: usize) {
    let removed = list.remove(at);
    let before = text(removed.decor().prefix());
    let behind = text(removed.decor().suffix());
    let is_own_line = before.contains('\n');
    let head = before.split('\n').next().unwrap_or_default().to_owned();
    if at < list.len() {
        let Some(next) = list.get_mut(at) else { return };
        let prefix = text(next.decor().prefix());
        let prefix = match (is_own_line, prefix.find('\n')) {
            (true, Some(line)) => format!("{head}{}", &prefix[line..]),
            (false, None) if at == 0 => before,
            _ => prefix,
        };
        next.decor_mut().set_prefix(prefix);
        return;
    }
    // It was the last: the white space before the bracket stays.
    let end = if list.trailing_comma() {
        text(Some(list.trailing()))
    } else {
        behind + &text(Some(list.trailing()))
    };
    let end = match (is_own_line, end.find('\n')) {
        (true, Some(line)) => format!("{head}{}", &end[line..]),
        (true, None) => format!("{head}\n"),
        (false, _) => end,
    };
    if list.is_empty() {
        list.set_trailing_comma(false);
        list.set_trailing(if end.trim().is_empty() { "" } else { end.as_str() });
    } else {
        list.set_trailing(end);
    }
}

/// Puts a new key into a table in braces. The white space before the brace stays.
pub(super) fn insert(table: &mut InlineTable, key: &str, mut new: Value) {
    let last = table.iter().last().map(|(key, _)| key.to_owned());
    if let Some(last) = last.and_then(|last| table.get_mut(&last))
        && let Some(suffix) = last.decor().suffix().and_then(RawString::as_str).map(str::to_owned)
    {
        last.decor_mut().set_suffix("");
        new.decor_mut().set_prefix(" ");
        new.decor_mut().set_suffix(suffix);
    }
    table.insert(key, new);
}

/// Removes a key from a table in braces.
pub(super) fn take(table: &mut InlineTable, key: &str) {
    let is_last = table.iter().last().is_some_and(|(last, _)| last == key);
    let removed = table.remove(key);
    let last = table.iter().last().map(|(key, _)| key.to_owned());
    if is_last
        && let Some(suffix) =
            removed.as_ref().and_then(|value| value.decor().suffix()).and_then(RawString::as_str)
        && let Some(last) = last.and_then(|last| table.get_mut(&last))
    {
        last.decor_mut().set_suffix(suffix);
    }
}

fn text(raw: Option<&RawString>) -> String {
    raw.and_then(RawString::as_str).unwrap_or_default().to_owned()
}
