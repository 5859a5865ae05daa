//! Sets of host names as clush writes them: `rack[1-2]node[01-40],@db!db7`.
//! `nodeset/parse.rs` reads them, `nodeset/shorten.rs` writes them as short as they go. What a group means is asked of
//! [`Groups`]; nothing here opens a file or starts a command.

mod parse;
mod shorten;

use std::collections::HashMap;
use std::sync::Arc;

/// How many hosts one set may hold, in the middle of its computation too.
pub const LIMIT: usize = 100_000;

/// Host names, each once, in the order in which they were first named.
#[derive(Debug, Clone, Default)]
pub struct NodeSet {
    /// Each name and its place in the order.
    places: HashMap<Arc<str>, u64>,
    next: u64,
}

/// What a group source says of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// A node set, or several between blanks or line ends. `@group` in it means a group of `source`.
    pub text: String,
    /// The source it is from.
    pub source: String,
}

/// A group that cannot be had: what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {advice}")]
pub struct GroupFault {
    /// What was looked for, where, and what came of it.
    pub what: String,
    /// What to do.
    pub advice: String,
}

/// Whoever knows the groups.
pub trait Groups {
    /// Says what `@name` (or `@source:name`) means.
    ///
    /// # Errors
    /// No such group or source, or its command failed.
    fn group(&mut self, source: Option<&str>, name: &str) -> Result<Definition, GroupFault>;

    /// Says which nodes `@*` (or `@source:*`) means.
    ///
    /// # Errors
    /// No such source, or its command failed.
    fn all(&mut self, source: Option<&str>) -> Result<Definition, GroupFault>;

    /// Names that `*` and `?` may match besides the nodes of `@*`, such as the aliases in `~/.ssh/config`.
    fn aliases(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// For callers without groups: every `@group` is an error that says so.
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

/// A node set that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node set \"{set}\"{within}, column {column}: {what}; {advice}")]
pub struct Fault {
    /// The text, or its part around the fault where it is long; harmless on a terminal.
    pub set: String,
    /// Counted in characters, from 1, in the whole text.
    pub column: usize,
    /// ` of group @x`, where it is not what the user typed.
    pub within: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

/// More names than [`LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{count} hosts are more than {LIMIT}, the most that one set may hold")]
pub struct TooMany {
    /// How many there would be.
    pub count: u128,
}

/// Whether a name was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// It was not.
    New,
    /// It was.
    Again,
}

impl NodeSet {
    /// Nobody.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads `text`: names with ranges (`node[1-5/2,9]`), `@group`, `@source:group`, `@*`, wildcards on known nodes, and
    /// between them `,` or a blank (and), `!` (without), `&` (only those in both), `^` (only those in one of both), worked
    /// off from left to right.
    ///
    /// # Errors
    /// The text is no node set, a group is not known or contains itself, or it would be more than [`LIMIT`] hosts.
    pub fn parse(text: &str, groups: &mut dyn Groups) -> Result<Self, Fault> {
        parse::Parser::new(groups).set(text)
    }

    /// Reads `text` as [`NodeSet::parse`] does, but its names are those of groups, with or without `@`: `web,db!old` is
    /// `@web,@db!@old`, as the value of `-g` is.
    ///
    /// # Errors
    /// As for [`NodeSet::parse`].
    pub fn parse_groups(text: &str, groups: &mut dyn Groups) -> Result<Self, Fault> {
        parse::Parser::new(groups).of_groups().set(text)
    }

    /// Takes out what `text` names, as `-x` does. Wildcards in it match the names of this set.
    ///
    /// # Errors
    /// As for [`NodeSet::parse`].
    pub fn exclude(&mut self, text: &str, groups: &mut dyn Groups) -> Result<(), Fault> {
        let out = parse::Parser::new(groups).with_known(self).set(text)?;
        self.subtract(&out);
        Ok(())
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether `name` is one of them.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Adds one name, taken as it is.
    ///
    /// # Errors
    /// The set is full.
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

    /// Adds those of `other`.
    ///
    /// # Errors
    /// They are too many together.
    pub fn unite(&mut self, other: &Self) -> Result<(), TooMany> {
        for name in other.names() {
            self.insert(&name)?;
        }
        Ok(())
    }

    /// Takes out those of `other`.
    pub fn subtract(&mut self, other: &Self) {
        for name in other.places.keys() {
            self.places.remove(name);
        }
    }

    /// Keeps those that are in `other` too.
    pub fn intersect(&mut self, other: &Self) {
        self.places.retain(|name, _| other.places.contains_key(name));
    }

    /// Keeps those that are in one of both, not in both.
    ///
    /// # Errors
    /// They are too many together.
    pub fn differ(&mut self, other: &Self) -> Result<(), TooMany> {
        for name in other.names() {
            if self.places.remove(&name).is_none() {
                self.insert(&name)?;
            }
        }
        Ok(())
    }

    /// The names in the order in which they were first named: the order in which hosts take their turns.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.places.iter().collect();
        names.sort_unstable_by_key(|(_, place)| **place);
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// The names in the order of clush: numbers count as numbers, `node9` before `node10`.
    #[must_use]
    pub fn sorted(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.places.keys().cloned().collect();
        names.sort_by_cached_key(|name| shorten::sort_key(name));
        names
    }
}

/// The shortest set: `node[1-5,9],web1`. Read again, it gives the same names.
impl std::fmt::Display for NodeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shorten::shorten(self.places.keys().map(AsRef::as_ref)))
    }
}

/// Two sets are equal if the same names are in them, in whatever order.
impl PartialEq for NodeSet {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.places.keys().all(|name| other.contains(name))
    }
}

impl Eq for NodeSet {}

/// Folds names into the shortest set, such as the hosts of a group of equal outputs.
#[must_use]
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    shorten::shorten(names)
}

/// Puts names in the order of clush: numbers count as numbers, `node9` before `node10`.
pub fn sort(names: &mut [&str]) {
    names.sort_by_cached_key(|name| shorten::sort_key(name));
}

/// Whether `name` matches `pattern`, where `*` is any text and `?` any one character.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Where to go on after the last `*`: only the last one ever needs to take more, so this is never worse than n * m.
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
