//! The text of one file, read once: each line is checked here, and evaluated for as many hosts as there are.

use std::sync::Arc;

use super::algorithms::Catalogue;
use super::criteria::{self, Criterion, Test};
use super::keyword::{self, Meaning};
use super::setting::{self, Bad, Settings};
use super::words::{self, Head};
use super::{Fault, Place};

/// A file, line by line. Lines with faults and empty lines are not in it.
#[derive(Debug)]
pub(super) struct Source {
    pub lines: Vec<Line>,
    /// Whether a `Match final` stands in it, or in a file it includes.
    pub wants_final: bool,
}

impl Source {
    /// Names of `Host` lines that are no patterns, here and in what is included.
    pub fn hosts<'s>(&'s self, names: &mut Vec<&'s str>) {
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
    /// Patterns; a `!` still stands before those that exclude.
    Host(Vec<String>),
    Match(Vec<Criterion>),
    Include(Vec<Arc<Source>>),
    Set(Settings),
    /// A fault, unless `IgnoreUnknown` names it.
    Unknown(String),
    /// Passed over; what to say about it.
    Passed(&'static str),
}

/// What an include names, turned into the files that it means.
pub(super) type Includes<'a> = &'a mut dyn FnMut(&Place, &str, &mut Vec<Fault>) -> Vec<Arc<Source>>;

/// Reads the lines of a file. What is wrong is added to `faults`.
pub(super) fn parse(
    file: &Arc<str>,
    text: &str,
    known: &Catalogue,
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
                let item = Item::Passed("its quote is never closed: nobody reads this line");
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
    known: &Catalogue,
    faults: &mut Vec<Fault>,
    include: Includes<'_>,
) -> Result<Item, Bad> {
    if rest.is_empty() {
        return Err(Bad::new("the argument is missing"));
    }
    if rest.contains('\0') {
        return Err(Bad::new("a zero byte stands in this line").hint("is it a text file?"));
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
        Meaning::Removed => Item::Passed("what it asks for has been removed from OpenSSH: remove the line"),
        Meaning::Unknown => Item::Unknown(word.to_owned()),
    })
}
