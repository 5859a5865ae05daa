//! Sets of host names in the syntax of clush: `rack[1-2]node[01-40],@db!db7`. `nodeset/parse.rs` parses them,
//! `nodeset/shorten.rs` writes them in the shortest form. [`Groups`] resolves groups; this module opens no file and
//! starts no command.

mod parse;
mod shorten;

use std::collections::HashMap;
use std::sync::Arc;

/// Limit of hosts in one set, including intermediate results.
pub const LIMIT: usize = 100_000;

/// Host names, each once, in the order of their first mention.
#[derive(Debug, Clone, Default)]
pub struct NodeSet {
    /// Position of each name in the order.
    places: HashMap<Arc<str>, u64>,
    next: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// A node set, or several separated by blanks or line ends. `@group` in the text means a group of `source`.
    pub text: String,
    pub source: String,
}

/// Error: a group cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {advice}")]
pub struct GroupFault {
    /// Group that was looked up, place of the look-up, and its result.
    pub what: String,
    pub advice: String,
}

pub trait Groups {
    /// Resolves `@name` or `@source:name`.
    ///
    /// # Errors
    /// The group or the source does not exist, or its command failed.
    fn group(&mut self, source: Option<&str>, name: &str) -> Result<Definition, GroupFault>;

    /// Resolves `@*` or `@source:*`: all nodes.
    ///
    /// # Errors
    /// The source does not exist, or its command failed.
    fn all(&mut self, source: Option<&str>) -> Result<Definition, GroupFault>;

    /// Names that `*` and `?` match besides the nodes of `@*`, such as the aliases in `~/.ssh/config`.
    fn aliases(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Group source without groups: every `@group` is an error.
#[derive(Debug, Clone, Copy)]
pub struct NoGroups;

impl Groups for NoGroups {
    fn group(&mut self, _: Option<&str>, name: &str) -> Result<Definition, GroupFault> {
        Err(GroupFault {
            what: format!("no groups are known here, so not @{name}"),
            advice: "name the hosts".to_owned(),
        })
    }

    fn all(&mut self, _: Option<&str>) -> Result<Definition, GroupFault> {
        Err(GroupFault {
            what: "no groups are known here, so \"all nodes\" means none".to_owned(),
            advice: "name the hosts".to_owned(),
        })
    }
}

/// Syntax error or unknown group in a node set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node set \"{set}\"{within}, column {column}: {what}; {advice}")]
pub struct Fault {
    /// The text, or the part around the fault if the text is long; safe for terminals.
    pub set: String,
    /// Column of the fault in the whole text, in characters, from 1.
    pub column: usize,
    /// ` of group @x` if the fault is in the definition of a group.
    pub within: String,
    pub what: String,
    pub advice: String,
}

/// Error: a set of more than [`LIMIT`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{count} hosts are more than {LIMIT}, the most that one set may hold")]
pub struct TooMany {
    pub count: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    New,
    Again,
}

impl NodeSet {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses names with ranges (`node[1-5/2,9]`), `@group`, `@source:group`, `@*`, wildcards on known nodes. The
    /// operators are `,` or a blank (union), `!` (difference), `&` (intersection), `^` (symmetric difference),
    /// evaluated from left to right.
    ///
    /// # Errors
    /// The text is no node set, a group is unknown or contains itself, or the result exceeds [`LIMIT`] hosts.
    pub fn parse(text: &str, groups: &mut dyn Groups) -> Result<Self, Fault> {
        parse::Parser::new(groups).set(text)
    }

    /// Parses the value of `-g`: as [`NodeSet::parse`], but each name is the name of a group, with or without `@`.
    /// `web,db!old` means `@web,@db!@old`.
    ///
    /// # Errors
    /// As for [`NodeSet::parse`].
    pub fn parse_groups(text: &str, groups: &mut dyn Groups) -> Result<Self, Fault> {
        parse::Parser::new(groups).of_groups().set(text)
    }

    /// Removes the names in `text`, the value of `-x`. Wildcards in `text` match names of this set.
    ///
    /// # Errors
    /// As for [`NodeSet::parse`].
    pub fn exclude(&mut self, text: &str, groups: &mut dyn Groups) -> Result<(), Fault> {
        let out = parse::Parser::new(groups).with_known(self).set(text)?;
        self.subtract(&out);
        Ok(())
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Adds one name without parsing the name.
    ///
    /// # Errors
    /// The set has reached [`LIMIT`].
    pub fn insert(&mut self, name: &str) -> Result<Inserted, TooMany> {
        if self.places.contains_key(name) {
            return Ok(Inserted::Again);
        }
        if self.places.len() >= LIMIT {
            return Err(TooMany { count: self.places.len() as u128 + 1 });
        }
        self.places.insert(name.into(), self.next);
        self.next += 1;
        Ok(Inserted::New)
    }

    /// Adds the names of `other`.
    ///
    /// # Errors
    /// The union exceeds [`LIMIT`].
    pub fn unite(&mut self, other: &Self) -> Result<(), TooMany> {
        for name in other.names() {
            self.insert(&name)?;
        }
        Ok(())
    }

    pub fn subtract(&mut self, other: &Self) {
        for name in other.places.keys() {
            self.places.remove(name);
        }
    }

    pub fn intersect(&mut self, other: &Self) {
        self.places.retain(|name, _| other.places.contains_key(name));
    }

    /// Keeps the names that are in exactly one of the two sets.
    ///
    /// # Errors
    /// The result exceeds [`LIMIT`].
    pub fn differ(&mut self, other: &Self) -> Result<(), TooMany> {
        for name in other.names() {
            if self.places.remove(&name).is_none() {
                self.insert(&name)?;
            }
        }
        Ok(())
    }

    /// Names in the order of their first mention. Hosts start in this order.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.places.iter().collect();
        names.sort_unstable_by_key(|(_, place)| **place);
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// Names in the order of clush, with numeric comparison: `node9` before `node10`.
    #[must_use]
    pub fn sorted(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.places.keys().cloned().collect();
        names.sort_by_cached_key(|name| shorten::sort_key(name));
        names
    }
}

/// Writes the shortest node set: `node[1-5,9],web1`. Parsing the text gives the same names.
impl std::fmt::Display for NodeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shorten::shorten(self.places.keys().map(AsRef::as_ref)))
    }
}

/// Two sets are equal if they have the same names in any order.
impl PartialEq for NodeSet {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.places.keys().all(|name| other.contains(name))
    }
}

impl Eq for NodeSet {}

#[must_use]
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    shorten::shorten(names)
}

/// Sorts names in the order of clush, with numeric comparison: `node9` before `node10`.
pub fn sort(names: &mut [&str]) {
    names.sort_by_cached_key(|name| shorten::sort_key(name));
}

/// Matches `name` with `pattern`, where `*` is any text and `?` any one character.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Backtracking to the last `*` is enough, so the time is at most n * m.
    let (mut p, mut n, mut back) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                back = Some((p + 1, n));
                p += 1;
            }
            Some('?') => (p, n) = (p + 1, n + 1),
            Some(&literal) if literal == name[n] => (p, n) = (p + 1, n + 1),
            _ => match back {
                Some((after, taken)) => {
                    (p, n) = (after, taken + 1);
                    back = Some((after, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&left| left == '*')
}

#[cfg(test)]
mod tests;
