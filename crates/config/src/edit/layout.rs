//! Keeps the lines of a text that a change does not concern: their bytes, the ends of lines, the end of the file.

use super::error::EditError;
use crate::difference::Difference;

/// Takes a change over into the text. `before` and `after` are what the parser writes, whose lines are those of `text`
/// but for their ends.
pub(super) fn keep(text: &str, before: &str, after: &str) -> Result<String, EditError> {
    if text == before {
        return Ok(after.to_owned());
    }
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let same = lines.iter().map(|line| bare(line)).eq(before.split_inclusive('\n').map(bare));
    if !same {
        return Err(EditError::new("the layout of this file cannot be kept in a change")
            .hint("edit the file, and reload it"));
    }
    let windows = lines.iter().filter(|line| line.ends_with("\r\n")).count();
    let end = if windows * 2 > lines.len() { "\r\n" } else { "\n" };
    let mut out = String::with_capacity(after.len());
    let mut at = 0;
    let take = |out: &mut String, range: std::ops::Range<usize>| {
        for line in &lines[range] {
            // The last line of a file without a line end at its end, if a line follows now.
            if !out.is_empty() && !out.ends_with('\n') {
                out.push_str(end);
            }
            out.push_str(line);
        }
    };
    for hunk in Difference::between(before, after).hunks {
        take(&mut out, at..hunk.at);
        at = hunk.at + hunk.removed.len();
        for line in &hunk.added {
            if !out.is_empty() && !out.ends_with('\n') {
                out.push_str(end);
            }
            out.push_str(bare(line));
            out.push_str(end);
        }
    }
    take(&mut out, at..lines.len());
    Ok(out)
}

fn bare(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}
