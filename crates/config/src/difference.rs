//! Differences between two texts, line by line: to show a change, and to take it over into another text.

use similar::{Algorithm, DiffOp, capture_diff_slices};

/// What turns one text into another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub hunks: Vec<Hunk>,
}

/// Lines that others replace. Each line has its line end, except at the end of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// Number of lines before the first of these in the old text.
    pub at: usize,
    pub removed: Vec<String>,
    pub added: Vec<String>,
}

impl Difference {
    pub fn between(old: &str, new: &str) -> Self {
        let old: Vec<&str> = old.split_inclusive('\n').collect();
        let new: Vec<&str> = new.split_inclusive('\n').collect();
        let first = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
        let rest = || old[first..].iter().rev().zip(new[first..].iter().rev());
        let last = rest().take_while(|(old, new)| old == new).count();
        let (gone, come) = (&old[first..old.len() - last], &new[first..new.len() - last]);
        let mut hunks = Vec::new();
        let mut push = |at: usize, removed: &[&str], added: &[&str]| {
            let owned = |lines: &[&str]| lines.iter().map(ToString::to_string).collect();
            hunks.push(Hunk { at: first + at, removed: owned(removed), added: owned(added) });
        };
        if gone.len().saturating_mul(come.len()) > MOST_WORK {
            push(0, gone, come);
            return Self { hunks };
        }
        for op in capture_diff_slices(Algorithm::Myers, gone, come) {
            match op {
                DiffOp::Equal { .. } => {}
                _ => push(op.old_range().start, &gone[op.old_range()], &come[op.new_range()]),
            }
        }
        Self { hunks }
    }

    pub fn is_empty(&self) -> bool {
        self.hunks.is_empty()
    }

    /// Makes the change in `old`. `None` if `old` is not the text that the difference is from.
    pub fn apply(&self, old: &str) -> Option<String> {
        let lines: Vec<&str> = old.split_inclusive('\n').collect();
        let mut out = String::with_capacity(old.len());
        let mut at = 0;
        for hunk in &self.hunks {
            let end = hunk.at + hunk.removed.len();
            if hunk.at < at || lines.get(hunk.at..end)? != hunk.removed {
                return None;
            }
            out.extend(lines[at..hunk.at].iter().copied());
            out.extend(hunk.added.iter().map(String::as_str));
            at = end;
        }
        out.extend(lines[at..].iter().copied());
        Some(out)
    }

    /// Writes it as `diff -u` does, without the names of files: `patch FILE` takes it. `old` is the text that the difference is
    /// from.
    pub fn unified(&self, old: &str) -> String {
        const AROUND: usize = 3;
        let lines: Vec<&str> = old.split_inclusive('\n').collect();
        let around = |from: usize, to: usize| lines.get(from..to).unwrap_or_default().iter().copied();
        let mut out = String::new();
        // Lines that are in the new text only, minus those that are in the old text only, before a part.
        let mut shift = 0isize;
        // Changes whose surroundings touch are one part.
        for part in self.hunks.chunk_by(|one, next| next.at <= one.end() + 2 * AROUND) {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            let from = first.at.saturating_sub(AROUND);
            let to = (last.end() + AROUND).min(lines.len());
            let grows = part.iter().map(Hunk::grows).sum::<isize>();
            let (old, new) = (to - from, (to - from).saturating_add_signed(grows));
            let there = from.saturating_add_signed(shift);
            out.push_str(&format!("@@ -{} +{} @@\n", span(from, old), span(there, new)));
            shift += grows;
            let mut at = from;
            for hunk in part {
                around(at, hunk.at).for_each(|line| push(&mut out, ' ', line));
                hunk.removed.iter().for_each(|line| push(&mut out, '-', line));
                hunk.added.iter().for_each(|line| push(&mut out, '+', line));
                at = hunk.end();
            }
            around(at, to).for_each(|line| push(&mut out, ' ', line));
        }
        out
    }
}

impl Hunk {
    /// Number of lines of the old text before the first one after it.
    fn end(&self) -> usize {
        self.at + self.removed.len()
    }

    /// How many lines more the new text has.
    fn grows(&self) -> isize {
        self.added.len() as isize - self.removed.len() as isize
    }
}

/// Place of a part as `diff -u` writes it: the number of its first line, and how many there are unless it is one. Without any
/// line it is the line before.
fn span(before: usize, count: usize) -> String {
    match count {
        0 => format!("{before},0"),
        1 => (before + 1).to_string(),
        count => format!("{},{count}", before + 1),
    }
}

fn push(out: &mut String, mark: char, line: &str) {
    out.push(mark);
    out.push_str(line);
    if !line.ends_with('\n') {
        out.push_str("\n\\ No newline at end of file\n");
    }
}

/// The work of a comparison is at most the product of both numbers of lines; beyond this, all lines count as changed.
const MOST_WORK: usize = 16_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_shown_as_diff_u_shows_it() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\n";
        let new = "a\nB\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\nn\n";
        let shown = Difference::between(old, new).unified(old);
        assert_eq!(shown, "@@ -1,5 +1,5 @@\n a\n-b\n+B\n c\n d\n e\n@@ -11,3 +11,4 @@\n k\n l\n m\n+n\n");
        assert!(Difference::between(old, old).is_empty());
        let near = Difference::between("a\nb\nc\n", "A\nb\nC\n").unified("a\nb\nc\n");
        assert_eq!(near, "@@ -1,3 +1,3 @@\n-a\n+A\n b\n-c\n+C\n");
        let unended = Difference::between("a\nb", "a\nb\n").unified("a\nb");
        assert_eq!(unended, "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n");
        assert_eq!(Difference::between("", "a\n").unified(""), "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(Difference::between("a\n", "").unified("a\n"), "@@ -1 +0,0 @@\n-a\n");
    }

    proptest! {
        #[test]
        fn the_difference_of_two_texts_applied_to_one_is_the_other(
            old in proptest::collection::vec("[ab]{0,2}(\r?\n)?", 0..12),
            new in proptest::collection::vec("[ab]{0,2}(\r?\n)?", 0..12),
        ) {
            let (old, new) = (old.concat(), new.concat());
            let difference = Difference::between(&old, &new);
            prop_assert_eq!(difference.apply(&old), Some(new.clone()));
            prop_assert_eq!(difference.is_empty(), old == new);
            let _ = difference.unified(&old);
        }
    }
}
