//! Writes names in the shortest form: `node1 node2 node3` is `node[1-3]`. A name consists of a shape (the text between
//! its numbers) and numbers. Names of one shape are folded along one number at a time, if all other numbers are equal,
//! until nothing changes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::rc::Rc;

/// Writes the shortest node set of the names. Duplicate names count once.
pub(super) fn shorten<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut shapes: BTreeMap<String, Shape<'a>> = BTreeMap::new();
    for name in names {
        let (texts, numbers) = split(name);
        let shape = shapes.entry(texts.join(SLOT)).or_insert_with(|| Shape { texts, rows: Vec::new() });
        shape.rows.push(numbers);
    }
    let mut out = String::new();
    for shape in shapes.into_values() {
        let mut rows = shape.rows;
        rows.sort_unstable();
        rows.dedup();
        let rows =
            rows.into_iter().map(|row| row.into_iter().map(|number| Rc::from([number])).collect()).collect();
        for row in fold(rows, shape.texts.len() - 1) {
            if !out.is_empty() {
                out.push(',');
            }
            for (index, text) in shape.texts.iter().enumerate() {
                out.push_str(text);
                if let Some(numbers) = row.get(index) {
                    write_numbers(&mut out, numbers);
                }
            }
        }
    }
    out
}

/// Sort key: the shape first, then the numbers.
pub(super) fn sort_key(name: &str) -> (String, Vec<Number>) {
    let (texts, numbers) = split(name);
    (texts.join(SLOT), numbers)
}

/// Number in a name. The order is that of ClusterShell, fewer digits first: `9` < `10` < `007`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Number {
    digits: u8,
    value: u64,
}

impl Number {
    /// True for a number with leading zeros.
    fn is_padded(self) -> bool {
        self.digits > 1 && self.value.checked_ilog10().map_or(1, |log| log + 1) < u32::from(self.digits)
    }

    /// True if a range that starts with `first` and has reached `self` can go on to `next`.
    fn continues(self, first: Self, next: Self) -> bool {
        next.value == self.value + 1
            && (next.digits == self.digits || !(first.is_padded() || next.is_padded()))
    }
}

struct Shape<'a> {
    /// `numbers.len() + 1` texts: number `i` follows text `i`.
    texts: Vec<&'a str>,
    rows: Vec<Vec<Number>>,
}

/// For each number of the shape, the values that occur.
type Row = Vec<Rc<[Number]>>;

/// Folds along the last number first, and also along the first number first; returns the shorter result.
fn fold(rows: Vec<Row>, places: usize) -> Vec<Row> {
    if rows.len() < 2 || places == 0 {
        return rows;
    }
    let backward = fold_in_order(rows.clone(), (0..places).rev().collect());
    if places == 1 || backward.len() == 1 {
        return backward;
    }
    let forward = fold_in_order(rows, (0..places).collect());
    if forward.len() < backward.len() { forward } else { backward }
}

fn fold_in_order(mut rows: Vec<Row>, order: Vec<usize>) -> Vec<Row> {
    loop {
        let before = rows.len();
        for &place in &order {
            rows = fold_along(rows, place);
        }
        if rows.len() == before {
            rows.sort_unstable();
            return rows;
        }
    }
}

/// Joins rows that differ only at `place`. Rows never share a name, so their values at `place` are disjoint.
fn fold_along(rows: Vec<Row>, place: usize) -> Vec<Row> {
    let empty: Rc<[Number]> = Rc::from([]);
    let mut joined: HashMap<Row, Vec<Rc<[Number]>>> = HashMap::with_capacity(rows.len());
    for mut row in rows {
        let here = std::mem::replace(&mut row[place], empty.clone());
        joined.entry(row).or_default().push(here);
    }
    let rows = joined.into_iter().map(|(mut row, mut parts)| {
        row[place] = match parts.len() {
            1 => parts.remove(0),
            _ => {
                let mut all: Vec<Number> = parts.iter().flat_map(|part| part.iter().copied()).collect();
                all.sort_unstable();
                all.into()
            }
        };
        row
    });
    rows.collect()
}

fn write_numbers(out: &mut String, numbers: &[Number]) {
    let several = numbers.len() > 1;
    if several {
        out.push('[');
    }
    let mut rest = numbers;
    while let Some((&first, after)) = rest.split_first() {
        let mut last = first;
        let mut length = 0;
        while let Some(&next) = after.get(length).filter(|&&next| last.continues(first, next)) {
            last = next;
            length += 1;
        }
        if rest.len() < numbers.len() {
            out.push(',');
        }
        let _ = write!(out, "{:0width$}", first.value, width = usize::from(first.digits));
        if length > 0 {
            let _ = write!(out, "-{:0width$}", last.value, width = usize::from(last.digits));
        }
        rest = &after[length..];
    }
    if several {
        out.push(']');
    }
}

/// Splits a name into texts and numbers. Names with a bracket (IPv6 addresses with a port) and numbers of more than
/// [`LONGEST`] digits stay text.
fn split(name: &str) -> (Vec<&str>, Vec<Number>) {
    if name.contains('[') {
        return (vec![name], Vec::new());
    }
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    let (mut start, mut at) = (0, 0);
    let bytes = name.as_bytes();
    while at < bytes.len() {
        let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if (1..=LONGEST).contains(&digits) {
            let value =
                bytes[at..at + digits].iter().fold(0, |value, byte| value * 10 + u64::from(byte - b'0'));
            texts.push(&name[start..at]);
            numbers.push(Number { digits: u8::try_from(digits).unwrap_or(u8::MAX), value });
            start = at + digits;
        }
        at += digits.max(1);
    }
    texts.push(&name[start..]);
    (texts, numbers)
}

/// Placeholder of a number in a shape; sorts as the placeholder of ClusterShell.
const SLOT: &str = "%s";

/// Limit of digits that count as a number.
const LONGEST: usize = 18;
