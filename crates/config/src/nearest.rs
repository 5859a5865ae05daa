//! "Did you mean ...?"

/// The most similar of some names, if one is similar enough to be meant.
pub(crate) fn nearest<'n>(written: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let most = (written.chars().count() / 3).clamp(1, 3);
    let lower = written.to_ascii_lowercase();
    names
        .into_iter()
        .filter(|name| name.len().abs_diff(written.len()) <= most && written.len() <= 80)
        .map(|name| (distance(&lower, &name.to_ascii_lowercase()), name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Edits that lead from one text to the other: insertions, deletions, changes, and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (above[j] + usize::from(x != y)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_another_word_is_not() {
        let names = ["bind", "backends", "balance", "protocol"];
        for (written, meant) in
            [("bnid", "bind"), ("Bind", "bind"), ("backend", "backends"), ("protocl", "protocol")]
        {
            assert_eq!(nearest(written, names), Some(meant), "{written}");
        }
        for written in ["", "x", "listen", "wibble", &"b".repeat(1000)] {
            assert_eq!(nearest(written, names), None, "{written}");
        }
    }
}
