//! Groups of hosts: our own file, and the group sources of ClusterShell (`groups.conf` with commands, flat `.cfg`
//! files, YAML files), which administrators can keep as they are. `fleet/groups.rs` in `crates/fleet` reads the files
//! and runs the commands.

mod conf;
mod fault;
mod upcall;
mod yaml;

pub use conf::{Conf, ConfSource};
pub use fault::FileFault;
pub use upcall::{Upcall, Upcalls};

use super::nodeset::{Definition, GroupFault, Groups, NodeSet};
use std::collections::{BTreeMap, HashMap};

use text::nearest::{distance, nearest};

/// Name of the group source that is the file of Penstock.
pub const OWN: &str = "penstock";

/// All group sources, and the sources for groups that are named without a source.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    sources: BTreeMap<String, Source>,
    /// Sources in which `@name` is looked up, in order.
    defaults: Vec<String>,
    /// Paths of group files that were looked for; an error lists them.
    looked: Vec<String>,
}

#[derive(Debug, Clone)]
struct Source {
    place: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Listed(BTreeMap<String, String>),
    Commands(Upcalls),
}

impl Catalog {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the path of a possible group file, for error messages.
    pub fn looked_at(&mut self, place: &str) {
        self.looked.push(place.to_owned());
    }

    /// Adds a source in which `@name` is looked up, after the sources added before.
    pub fn add_default(&mut self, source: &str) {
        if !self.defaults.iter().any(|known| known == source) {
            self.defaults.push(source.to_owned());
        }
    }

    /// Adds a file of lines `name: set`: our own file as [`OWN`], or a flat file of ClusterShell. Several lines with
    /// the same name add up to one group.
    ///
    /// # Errors
    /// Each line that is no group, no comment and not blank. The other lines are used.
    pub fn add_flat(&mut self, source: &str, place: &str, text: &str) -> Result<(), Vec<FileFault>> {
        let mut groups: BTreeMap<String, String> = BTreeMap::new();
        let mut faults = Vec::new();
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line = without_comment(line).trim();
            if line.is_empty() {
                continue;
            }
            let fault = |what: String, advice: &str| FileFault {
                place: place.to_owned(),
                line: index + 1,
                what,
                advice: advice.to_owned(),
            };
            match line.split_once(':').map(|(name, set)| (name.trim(), set.trim())) {
                None => faults.push(fault(
                    "this line has no \":\"".to_owned(),
                    "write NAME: SET, such as web: web[1-9]",
                )),
                Some((name, _)) if !is_name(name) => {
                    let what = format!("\"{}\" cannot be the name of a group", name.escape_debug());
                    faults.push(fault(what, "take letters, digits, \"-\", \"_\" and \".\""));
                }
                Some((name, set)) => {
                    let nodes = groups.entry(name.to_owned()).or_default();
                    nodes.push_str(set);
                    nodes.push('\n');
                }
            }
        }
        self.add_listed(source, place, groups);
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Adds a YAML file in the format of ClusterShell: sources, each with groups, each a set or a list of sets.
    ///
    /// # Errors
    /// The file is not YAML, or has another structure. Nothing of the file is used.
    pub fn add_yaml(&mut self, place: &str, text: &str) -> Result<(), FileFault> {
        for (source, groups) in yaml::read(place, text)? {
            self.add_listed(&source, place, groups);
        }
        Ok(())
    }

    /// Adds the sources of a `groups.conf`, and its default source.
    pub fn add_conf(&mut self, place: &str, conf: &Conf) {
        for ConfSource { name, upcalls } in &conf.sources {
            let kind = Kind::Commands(upcalls.clone());
            self.sources.entry(name.clone()).or_insert(Source { place: place.to_owned(), kind });
        }
        if let Some(default) = &conf.default {
            self.add_default(default);
        }
    }

    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str)
    }

    /// Returns a [`Lookup`] on the sources. `run` runs an upcall; each upcall runs once.
    pub fn look_up<'a>(&'a self, run: &'a mut dyn FnMut(&Upcall) -> Result<String, String>) -> Lookup<'a> {
        Lookup { catalog: self, run, ran: HashMap::new(), aliases: Vec::new() }
    }

    fn add_listed(&mut self, source: &str, place: &str, groups: BTreeMap<String, String>) {
        let fresh = || Source { place: place.to_owned(), kind: Kind::Listed(BTreeMap::new()) };
        let known = self.sources.entry(source.to_owned()).or_insert_with(fresh);
        if let Kind::Listed(listed) = &mut known.kind {
            for (name, text) in groups {
                listed.entry(name).or_default().push_str(&text);
            }
        }
    }
}

pub struct Lookup<'a> {
    catalog: &'a Catalog,
    run: &'a mut dyn FnMut(&Upcall) -> Result<String, String>,
    /// Output or error of each upcall that has run.
    ran: HashMap<Upcall, Result<String, String>>,
    aliases: Vec<String>,
}

impl Lookup<'_> {
    /// Adds host names that wildcards match besides the nodes of `@*`.
    #[must_use]
    pub fn with_aliases(mut self, aliases: Vec<String>) -> Self {
        self.aliases = aliases;
        self
    }

    /// Lists the groups of a source, in order.
    ///
    /// # Errors
    /// The source does not exist, cannot list its groups, or its upcall failed.
    pub fn list(&mut self, source: &str) -> Result<Vec<String>, GroupFault> {
        match &self.catalog.source(source)?.kind {
            Kind::Listed(groups) => Ok(groups.keys().cloned().collect()),
            Kind::Commands(upcalls) => match &upcalls.list {
                Some(list) => Ok(words(&self.call(source, upcalls, list, &[])?)),
                None => Err(GroupFault {
                    what: format!("group source \"{source}\" cannot say which groups it has"),
                    advice: format!("give it `list:` in {}", self.catalog.source(source)?.place),
                }),
            },
        }
    }

    /// Returns the groups of `source` that contain `node`.
    ///
    /// # Errors
    /// As for [`Lookup::list`], or a definition of a group is wrong.
    pub fn groups_of(&mut self, source: &str, node: &str) -> Result<Vec<String>, GroupFault> {
        if let Kind::Commands(upcalls) = &self.catalog.source(source)?.kind
            && let Some(reverse) = &upcalls.reverse
            && is_name(node)
        {
            return Ok(words(&self.call(source, upcalls, reverse, &[("NODE", node)])?));
        }
        let mut found = Vec::new();
        for group in self.list(source)? {
            let set = NodeSet::parse(&format!("@{source}:{group}"), self).map_err(|fault| GroupFault {
                what: fault.to_string(),
                advice: "correct that group".to_owned(),
            })?;
            if set.contains(node) {
                found.push(group);
            }
        }
        Ok(found)
    }

    fn call(
        &mut self,
        source: &str,
        upcalls: &Upcalls,
        command: &str,
        more: &[(&str, &str)],
    ) -> Result<String, GroupFault> {
        let mut command = command.replace("$SOURCE", source);
        for (variable, value) in more {
            command = command.replace(&format!("${variable}"), value);
        }
        let upcall = Upcall { command, directory: upcalls.directory.clone() };
        let run = &mut self.run;
        let said = self.ran.entry(upcall).or_insert_with_key(|upcall| run(upcall)).clone();
        said.map_err(|why| GroupFault {
            what: format!("the command of group source \"{source}\" failed: {why}"),
            advice: format!(
                "correct it in {}",
                self.catalog.sources.get(source).map_or("groups.conf", |known| &known.place)
            ),
        })
    }

    /// Returns the definition of group `name` in `source`, or `None` if the source has no such group.
    fn find(&mut self, source: &str, name: &str) -> Result<Option<Definition>, GroupFault> {
        let text = match &self.catalog.source(source)?.kind {
            Kind::Listed(groups) => groups.get(name).cloned(),
            Kind::Commands(upcalls) => {
                let mapped = self.call(source, upcalls, &upcalls.map, &[("GROUP", name)]);
                if mapped.as_ref().is_ok_and(|text| !text.trim().is_empty()) {
                    mapped.ok()
                } else if self.list(source).is_ok_and(|groups| groups.iter().all(|group| group != name)) {
                    // An upcall prints nothing, or fails, for an unknown group.
                    None
                } else if upcalls.list.is_some() || mapped.is_err() {
                    Some(mapped?)
                } else {
                    None
                }
            }
        };
        Ok(text.map(|text| Definition { text, source: source.to_owned() }))
    }

    fn unknown(&mut self, source: Option<&str>, places: &[String], name: &str) -> GroupFault {
        let mut near: Vec<(usize, String)> = Vec::new();
        for known in self.catalog.sources.keys() {
            for group in self.list(known).unwrap_or_default() {
                let short = source.is_none() && places.contains(known);
                let written = if short { format!("@{group}") } else { format!("@{known}:{group}") };
                near.extend(distance(name, &group).map(|distance| (distance, written)));
            }
        }
        near.sort();
        near.truncate(3);
        let near: Vec<String> = near.into_iter().map(|(_, written)| written).collect();
        let looked: Vec<String> = places
            .iter()
            .filter_map(|source| Some(format!("\"{source}\" ({})", self.catalog.sources.get(source)?.place)))
            .collect();
        let own = match self.catalog.looked.first() {
            Some(file) if source.is_none() && !places.iter().any(|place| place == OWN) => {
                format!("; our own file {file} does not exist")
            }
            _ => String::new(),
        };
        GroupFault {
            what: format!("no group \"{name}\" in {}{own}", looked.join(", nor in ")),
            advice: match near.is_empty() {
                false => format!("did you mean {}?", near.join(", ")),
                true => "name another, or define it there".to_owned(),
            },
        }
    }
}

impl Groups for Lookup<'_> {
    fn group(&mut self, source: Option<&str>, name: &str) -> Result<Definition, GroupFault> {
        let places = self.catalog.places(source)?;
        for place in &places {
            if let Some(found) = self.find(place, name)? {
                return Ok(found);
            }
        }
        Err(self.unknown(source, &places, name))
    }

    fn all(&mut self, source: Option<&str>) -> Result<Definition, GroupFault> {
        let places = self.catalog.places(source)?;
        let [place] = places.as_slice() else {
            let text: Vec<String> = places.iter().map(|place| format!("@{place}:*")).collect();
            return Ok(Definition { text: text.join(" "), source: "all".to_owned() });
        };
        let said = match &self.catalog.source(place)?.kind {
            Kind::Listed(groups) => groups.get("all").cloned(),
            Kind::Commands(upcalls) => match &upcalls.all {
                Some(all) => Some(self.call(place, upcalls, all, &[])?),
                None => None,
            },
        };
        let text = match said {
            Some(text) => text,
            None => self.list(place)?.iter().map(|group| format!("@{place}:{group} ")).collect(),
        };
        Ok(Definition { text, source: place.clone() })
    }

    fn aliases(&mut self) -> Vec<String> {
        self.aliases.clone()
    }
}

impl Catalog {
    fn source(&self, name: &str) -> Result<&Source, GroupFault> {
        self.sources.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.sources().collect();
            GroupFault {
                what: format!("no group source \"{name}\"; there is {}", known.join(", ")),
                advice: match nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean @{near}:GROUP?"),
                    None => "name one of them, or none".to_owned(),
                },
            }
        })
    }

    /// Returns the sources in which `@name` or `@source:name` is looked up.
    fn places(&self, source: Option<&str>) -> Result<Vec<String>, GroupFault> {
        if self.sources.is_empty() {
            let looked = if self.looked.is_empty() {
                String::new()
            } else {
                format!(", neither {}", self.looked.join(" nor "))
            };
            return Err(GroupFault {
                what: format!("no file of groups exists{looked}"),
                advice: "write lines such as web: web[1-9] into the first of them".to_owned(),
            });
        }
        if let Some(source) = source {
            self.source(source)?;
            return Ok(vec![source.to_owned()]);
        }
        let places: Vec<String> =
            self.defaults.iter().filter(|name| self.sources.contains_key(*name)).cloned().collect();
        if places.is_empty() {
            let known: Vec<&str> = self.sources().collect();
            return Err(GroupFault {
                what: format!("no group source is the default; there is {}", known.join(", ")),
                advice: "write @SOURCE:GROUP, or set `default:` in groups.conf".to_owned(),
            });
        }
        Ok(places)
    }
}

/// Accepts names of groups, sources and nodes without characters that are special in a shell.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('-')
        && name.chars().all(|sign| sign.is_alphanumeric() || "-_.+%=".contains(sign))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the line up to a `#` at its start or after a blank.
pub(super) fn without_comment(line: &str) -> &str {
    let cut = line
        .char_indices()
        .find(|&(at, sign)| sign == '#' && line[..at].chars().next_back().is_none_or(char::is_whitespace));
    cut.map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests;
