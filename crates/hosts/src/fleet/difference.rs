//! Differences between two outputs, in the format of `diff -u`. Work and shown lines have limits for any output.

use similar::{Algorithm, DiffOp, capture_diff_slices, group_diff_ops};
use std::fmt;
use std::ops::Range;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub lines: Vec<Line>,
    /// Number of lines that are not shown because of the limit.
    pub left_out: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub kind: Kind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Header of one part of the difference: `@@ -3,4 +3,5 @@`.
    Place,
    Same,
    /// Line that only the output of the majority has.
    Gone,
    /// Line that only the other output has.
    New,
}

impl Difference {
    /// Compares the output `majority` with `other`, and keeps at most `most` lines to show.
    #[must_use]
    pub fn new(majority: &[&str], other: &[&str], most: usize) -> Self {
        let mut difference = Self { lines: Vec::new(), left_out: 0 };
        for part in group_diff_ops(compare(majority, other), CONTEXT) {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            let old = first.old_range().start..last.old_range().end;
            let new = first.new_range().start..last.new_range().end;
            let place = format!("@@ -{} +{} @@", Span(&old), Span(&new));
            difference.add(Kind::Place, &place, most);
            for op in &part {
                match op {
                    DiffOp::Equal { .. } => difference.add_all(Kind::Same, &majority[op.old_range()], most),
                    _ => {
                        difference.add_all(Kind::Gone, &majority[op.old_range()], most);
                        difference.add_all(Kind::New, &other[op.new_range()], most);
                    }
                }
            }
        }
        difference
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn add_all(&mut self, kind: Kind, texts: &[&str], most: usize) {
        for text in texts {
            self.add(kind, text, most);
        }
    }

    fn add(&mut self, kind: Kind, text: &str, most: usize) {
        if self.lines.len() < most {
            self.lines.push(Line { kind, text: text.to_owned() });
        } else if kind != Kind::Place {
            self.left_out += 1;
        }
    }
}

impl Kind {
    /// Prefix of the line in the format of `diff -u`.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::Place => "",
            Self::Same => " ",
            Self::Gone => "-",
            Self::New => "+",
        }
    }
}

/// Writes the format of `diff -u`, without the two lines of file names.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{}{}", line.kind.sign(), line.text)?;
        }
        if self.left_out > 0 {
            writeln!(f, "... {} more lines", self.left_out)?;
        }
        Ok(())
    }
}

/// Compares two outputs. Equal lines at the start and at the end are skipped first. The rest is compared line by line
/// up to [`MOST_WORK`]; above that limit the whole rest counts as replaced.
fn compare(old: &[&str], new: &[&str]) -> Vec<DiffOp> {
    let shorter = old.len().min(new.len());
    let begin = (0..shorter).take_while(|&at| old[at] == new[at]).count();
    let end = (0..shorter - begin)
        .take_while(|&back| old[old.len() - 1 - back] == new[new.len() - 1 - back])
        .count();
    let (old_middle, new_middle) = (&old[begin..old.len() - end], &new[begin..new.len() - end]);
    let mut ops = Vec::new();
    if begin > 0 {
        ops.push(DiffOp::Equal { old_index: 0, new_index: 0, len: begin });
    }
    if old_middle.len().saturating_mul(new_middle.len()) <= MOST_WORK {
        ops.extend(
            capture_diff_slices(Algorithm::Myers, old_middle, new_middle)
                .into_iter()
                .map(|op| shifted(op, begin)),
        );
    } else {
        let (old_len, new_len) = (old_middle.len(), new_middle.len());
        ops.push(DiffOp::Replace { old_index: begin, old_len, new_index: begin, new_len });
    }
    if end > 0 {
        ops.push(DiffOp::Equal { old_index: old.len() - end, new_index: new.len() - end, len: end });
    }
    ops
}

fn shifted(op: DiffOp, by: usize) -> DiffOp {
    match op {
        DiffOp::Equal { old_index, new_index, len } => {
            DiffOp::Equal { old_index: old_index + by, new_index: new_index + by, len }
        }
        DiffOp::Delete { old_index, old_len, new_index } => {
            DiffOp::Delete { old_index: old_index + by, old_len, new_index: new_index + by }
        }
        DiffOp::Insert { old_index, new_index, new_len } => {
            DiffOp::Insert { old_index: old_index + by, new_index: new_index + by, new_len }
        }
        DiffOp::Replace { old_index, old_len, new_index, new_len } => {
            DiffOp::Replace { old_index: old_index + by, old_len, new_index: new_index + by, new_len }
        }
    }
}

/// Line range in a header of `diff -u`: `3,4` is 4 lines from line 3. A count of 1 is omitted, as by diff.
struct Span<'r>(&'r Range<usize>);

impl fmt::Display for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => write!(f, "{},0", self.0.start),
            1 => write!(f, "{}", self.0.start + 1),
            len => write!(f, "{},{len}", self.0.start + 1),
        }
    }
}

/// Number of equal lines that are shown before and after a difference.
const CONTEXT: usize = 3;

/// Limit for a comparison line by line: lines of one output multiplied by lines of the other.
const MOST_WORK: usize = 4_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(old: &str, new: &str, most: usize) -> String {
        let (old, new): (Vec<&str>, Vec<&str>) = (old.split(' ').collect(), new.split(' ').collect());
        Difference::new(&old, &new, most).to_string()
    }

    #[test]
    fn a_difference_looks_as_diff_u_shows_it() {
        assert_eq!(
            difference("1 2 3 4 5 6 7 8 9", "1 2 3 4 x 6 7 8 9", 99),
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n"
        );
        assert_eq!(difference("a b", "a b c", 99), "@@ -1,2 +1,3 @@\n a\n b\n+c\n");
        assert_eq!(difference("a", "b", 99), "@@ -1 +1 @@\n-a\n+b\n");
        assert_eq!(Difference::new(&[], &["a"], 99).to_string(), "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(difference("a b c", "a b c", 99), "");
        let far = difference("a 1 2 3 4 5 6 7 8 z", "b 1 2 3 4 5 6 7 8 y", 99);
        assert_eq!(far, "@@ -1,4 +1,4 @@\n-a\n+b\n 1\n 2\n 3\n@@ -7,4 +7,4 @@\n 6\n 7\n 8\n-z\n+y\n");
    }

    #[test]
    fn big_outputs_cost_little_and_show_little() {
        let old: Vec<String> = (0..200_000).map(|n| format!("old {n}")).collect();
        let new: Vec<String> = (0..200_000).map(|n| format!("new {n}")).collect();
        let (old, new): (Vec<&str>, Vec<&str>) =
            (old.iter().map(String::as_str).collect(), new.iter().map(String::as_str).collect());
        let difference = Difference::new(&old, &new, 50);
        assert_eq!((difference.lines.len(), difference.left_out), (50, 400_000 - 49));
        assert!(difference.to_string().ends_with("... 399951 more lines\n"));
    }

    #[test]
    fn one_line_in_a_big_output_is_found() {
        let old: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
        let mut new: Vec<&str> = old.iter().map(String::as_str).collect();
        new[77_777] = "x";
        let old: Vec<&str> = old.iter().map(String::as_str).collect();
        assert_eq!(Difference::new(&old, &new, 50).lines.len(), 1 + 6 + 2);
    }
}
