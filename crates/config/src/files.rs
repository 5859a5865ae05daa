//! The files of one configuration as one text, with the places of each: what is served, edited, compared and undone is
//! one text, whether it came from one file or from several.
//!
//! The text of each file but the first begins behind a line with its path: `MARK` and the path. No file may have such a
//! line itself, so [`split`] gives back every file, byte for byte.

use crate::difference::Difference;

/// Largest size of a configuration in bytes, with all of its files.
pub const MAX_TEXT: usize = 4 * 1024 * 1024;

/// Beginning of the line before the text of an included file.
pub(crate) const MARK: &str = "#>>> file ";

/// One file of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File<'a> {
    /// Its path: absolute, or from the directory of the first file. `None` for the first file.
    pub path: Option<&'a str>,
    pub text: &'a str,
}

/// Returns the files of a joined text; a text without a `MARK` is one file.
pub fn split(joined: &str) -> Vec<File<'_>> {
    let mut files = Vec::new();
    let (mut path, mut rest) = (None, joined);
    while let Some((text, next)) = mark(rest) {
        files.push(File { path, text });
        let line = rest[next..].split('\n').next().unwrap_or_default();
        path = Some(line);
        rest = rest.get(next + line.len() + 1..).unwrap_or_default();
    }
    files.push(File { path, text: rest });
    files
}

/// Splits at the first mark: the text before its line, and the offset of the path.
fn mark(text: &str) -> Option<(&str, usize)> {
    let at = text.match_indices(MARK).map(|(at, _)| at).find(|at| text[..*at].ends_with('\n'))?;
    Some((&text[..at - 1], at + MARK.len()))
}

/// Appends a file to a joined text. Returns the offset of its first byte.
pub(crate) fn append(joined: &mut String, path: &str, text: &str) -> usize {
    joined.extend(["\n", MARK, path, "\n"]);
    let start = joined.len();
    joined.push_str(text);
    start
}

/// Returns the offset of a line that only [`append`] may write.
pub(crate) fn forbidden(text: &str) -> Option<usize> {
    text.match_indices(MARK).map(|(at, _)| at).find(|at| *at == 0 || text[..*at].ends_with('\n'))
}

/// Writes what turns one joined text into another as `diff -u` does, with the names of files where there are several: `first`
/// is that of the first one.
pub fn unified(old: &str, new: &str, first: &str) -> String {
    let (before, after) = (split(old), split(new));
    if before.len() == 1 && after.len() == 1 {
        return Difference::between(old, new).unified(old);
    }
    let text = |files: &[File<'_>], path: Option<&str>| {
        files.iter().find(|file| file.path == path).map_or(String::new(), |file| file.text.to_owned())
    };
    let gone = before.iter().filter(|file| after.iter().all(|other| other.path != file.path));
    let mut out = String::new();
    for path in after.iter().chain(gone).map(|file| file.path) {
        let (old, new) = (text(&before, path), text(&after, path));
        let shown = Difference::between(&old, &new).unified(&old);
        if !shown.is_empty() {
            let name = path.unwrap_or(first);
            out.push_str(&format!("--- {name}\n+++ {name}\n{shown}"));
        }
    }
    out
}

/// Lines and files of a joined text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Byte offset of each line's start.
    lines: Vec<usize>,
    /// Names of the files after the first one, and the byte offsets at which they start.
    files: Vec<(String, usize)>,
}

impl Places {
    pub(crate) fn new(text: &str) -> Self {
        Self { lines: std::iter::once(0).chain(starts(text, 0)).collect(), files: Vec::new() }
    }

    /// A file was appended to the joined text: `joined` has it from `start` on.
    pub(crate) fn add(&mut self, name: String, joined: &str, start: usize) {
        let last = self.lines.last().copied().unwrap_or_default();
        self.lines.extend(starts(&joined[last..], last));
        self.files.push((name, start));
    }

    /// Number of the line in its file, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        let first = self.file(at).map_or(0, |(_, start)| start);
        self.index(at) - self.index(first) + 1
    }

    /// Offset of the start of the line.
    pub(crate) fn line_start(&self, at: usize) -> usize {
        self.lines[self.index(at) - 1]
    }

    /// Name and first byte of the file; `None` for the first one.
    pub(crate) fn file(&self, at: usize) -> Option<(&str, usize)> {
        let file = self.files.partition_point(|(_, start)| *start <= at).checked_sub(1)?;
        self.files.get(file).map(|(name, start)| (name.as_str(), *start))
    }

    /// Words for a place beside another fault: `line 3`, or with the name of the file where there are several.
    pub(crate) fn words(&self, at: usize, first: &str) -> String {
        let line = self.line(at);
        match self.file(at) {
            None if self.files.is_empty() => format!("line {line}"),
            file => format!("{} line {line}", file.map_or(first, |(name, _)| name)),
        }
    }

    /// Place of a value as text, with the name of its file if that is an included one.
    pub(crate) fn origin(&self, at: usize) -> String {
        match self.file(at) {
            None => format!("line {}", self.line(at)),
            Some((name, _)) => format!("{name} line {}", self.line(at)),
        }
    }

    fn index(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }
}

fn starts(text: &str, from: usize) -> impl Iterator<Item = usize> {
    text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(move |(at, _)| from + at + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_difference_names_the_file() {
        let joined = |text: &str| {
            let mut joined = "a = 1\n".to_owned();
            append(&mut joined, "conf.d/b.toml", text);
            joined
        };
        assert_eq!(
            unified(&joined("b = 1\n"), &joined("b = 2\n"), "p.toml"),
            "--- conf.d/b.toml\n+++ conf.d/b.toml\n@@ -1 +1 @@\n-b = 1\n+b = 2\n"
        );
        let added = unified("a = 1\n", &joined("b = 2\n"), "p.toml");
        assert_eq!(added, "--- conf.d/b.toml\n+++ conf.d/b.toml\n@@ -0,0 +1 @@\n+b = 2\n");
        let first = unified(&joined("b\n"), &joined("b\n").replace("a = 1", "a = 2"), "p.toml");
        assert_eq!(first, "--- p.toml\n+++ p.toml\n@@ -1 +1 @@\n-a = 1\n+a = 2\n");
        assert_eq!(unified("a\n", "b\n", "p.toml"), "@@ -1 +1 @@\n-a\n+b\n");
    }

    proptest! {
        #[test]
        fn every_file_comes_back_byte_for_byte(
            first in "[a#>\n\r ]{0,12}",
            more in proptest::collection::vec(("[a-z/.]{1,8}", "[b#>\n\r ]{0,12}"), 0..4),
        ) {
            let mut joined = first.clone();
            let mut places = Places::new(&joined);
            for (path, text) in &more {
                let start = append(&mut joined, path, text);
                places.add(path.clone(), &joined, start);
            }
            let files = split(&joined);
            prop_assert_eq!(files.len(), more.len() + 1);
            prop_assert_eq!(files[0], File { path: None, text: &first });
            for (file, (path, text)) in files[1..].iter().zip(&more) {
                prop_assert_eq!(file, &File { path: Some(path), text });
                let at = file.text.as_ptr() as usize - joined.as_ptr() as usize;
                prop_assert_eq!(places.line(at), 1);
                prop_assert_eq!(places.line(at + text.len()), text.matches('\n').count() + 1);
            }
        }
    }
}
