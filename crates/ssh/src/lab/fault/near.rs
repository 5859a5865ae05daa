//! Which fault is meant by a name that there is not.

use super::FAULTS;

/// The names that differ by a slip of the finger, or else those that have the word in them or begin alike; with punctuation.
pub(super) fn near(name: &str) -> String {
    let names = FAULTS.iter().map(|entry| entry.name);
    let least = names.clone().map(|known| (distance(name, known), known)).min();
    let near: Vec<_> = match least {
        Some((slips, known)) if slips <= (name.len() / 3).clamp(1, 2) => vec![known],
        _ => {
            let head: String = name.chars().take(3).collect();
            let alike = |known: &&str| known.contains(name) || known.starts_with(&head);
            names.filter(|known| head.chars().count() == 3 && alike(known)).collect()
        }
    };
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}

/// How many letters must be changed, added, taken away, or swapped with their neighbour to make one word of another.
fn distance(a: &str, b: &str) -> usize {
    // Longer than any name; nobody waits for the answer.
    if a.len() > 40 {
        return a.len();
    }
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    if swapped { best.min(rows[i - 2][j - 2] + 1) } else { best }
                }
            };
        }
    }
    rows[a.len()][b.len()]
}
