//! One parsed file. Each line is checked once, and evaluated for any number of hosts.

use std::sync::Arc;

use super::algorithms::KnownAlgorithms;
use super::criteria::{self, Criterion, Test};
use super::keyword::{self, Meaning};
use super::setting::{self, Bad, Settings};
use super::words::{self, Head};
use super::{Fault, Place};

/// Lines of a file, without empty lines and lines with faults.
#[derive(Debug)]
pub(super) struct Source {
    pub lines: Vec<Line>,
    /// True if the file or an included file contains `Match final`.
    pub wants_final: bool,
}

impl Source {
    /// Collects names of `Host` lines that are no patterns, with those of included files.
    pub(super) fn hosts<'s>(&'s self, names: &mut Vec<&'s str>) {
        for line in &self.lines {
            match &line.item {
                Item::Host(patterns) => {
                    names.extend(
                        patterns.iter().map(String::as_str).filter(|name| !name.contains(['*', '?', '!'])),
                    );
                }
                Item::Include(files) => files.iter().for_each(|file| file.hosts(names)),
                _ => {}
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Line {
    pub place: Place,
    pub item: Item,
}

#[derive(Debug)]
pub(super) enum Item {
    /// Patterns; patterns that exclude still start with `!`.
    Host(Vec<String>),
    Match(Vec<Criterion>),
    Include(Vec<Arc<Source>>),
    Set(Settings),
    /// Unknown keyword: a fault, unless `IgnoreUnknown` names the keyword.
    Unknown(String),
    /// Ignored line, with the remark to report.
    Passed(&'static str),
}

/// Reads the files of an include.
pub(super) type Includes<'a> = &'a mut dyn FnMut(&Place, &str, &mut Vec<Fault>) -> Vec<Arc<Source>>;

/// Parses the lines of a file, and adds faults to `faults`.
pub(super) fn parse(
    file: &Arc<str>,
    text: &str,
    known: &KnownAlgorithms,
    faults: &mut Vec<Fault>,
    include: Includes<'_>,
) -> Source {
    let mut source = Source { lines: Vec::new(), wants_final: false };
    for (at, line) in text.split('\n').enumerate() {
        let place = Place { file: file.clone(), line: at + 1 };
        let (word, rest) = match words::head(line) {
            Head::Keyword(word, rest) => (word, rest),
            Head::Empty => continue,
            Head::OpenQuote => {
                let item = Item::Passed("unterminated quote: this line is ignored");
                source.lines.push(Line { place, item });
                continue;
            }
        };
        match parse_line(&place, &word, rest, known, faults, include) {
            Ok(item) => {
                source.wants_final |= match &item {
                    Item::Match(criteria) => criteria.iter().any(|one| one.test == Test::Final),
                    Item::Include(files) => files.iter().any(|file| file.wants_final),
                    _ => false,
                };
                source.lines.push(Line { place, item });
            }
            Err(bad) => faults.push(Fault::new(&place, format!("{word}: {}", bad.what), bad.hint)),
        }
    }
    source
}

fn parse_line(
    place: &Place,
    word: &str,
    rest: &str,
    known: &KnownAlgorithms,
    faults: &mut Vec<Fault>,
    include: Includes<'_>,
) -> Result<Item, Bad> {
    if rest.is_empty() {
        return Err(Bad::new("the argument is missing"));
    }
    if rest.contains('\0') {
        return Err(Bad::new("this line has a zero byte").hint("is it a text file?"));
    }
    let args = words::words(rest).map_err(|_| {
        Bad::new("a quote is not closed").hint("a quote inside an argument is written \\\" or \\'")
    })?;
    let meaning = keyword::meaning(word);
    let bare = matches!(meaning, Meaning::Host | Meaning::Include);
    if bare && args.iter().any(String::is_empty) {
        return Err(Bad::new("an argument is empty"));
    }
    Ok(match meaning {
        Meaning::Host => Item::Host(args),
        Meaning::Match => Item::Match(criteria::parse(args)?),
        Meaning::Include => {
            Item::Include(args.iter().flat_map(|pattern| include(place, pattern, faults)).collect())
        }
        Meaning::Set(keyword) => Item::Set(setting::parse(keyword, args, rest, known)?),
        Meaning::Deprecated => Item::Passed("OpenSSH no longer looks at it: remove the line"),
        Meaning::Removed => Item::Passed("OpenSSH no longer supports it: remove the line"),
        Meaning::Unknown => Item::Unknown(word.to_owned()),
    })
}
