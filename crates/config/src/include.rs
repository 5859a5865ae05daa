//! `include`: reads the files that a configuration names, and puts all sections into one tree.
//!
//! `crates/config/src/include/pattern.rs` finds the files of a pattern, `crates/config/src/include/merge.rs` adds their
//! sections up, `crates/config/src/files.rs` joins the texts. A live change edits the joined text: its files are not read
//! again ([`From::Joined`]).

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

mod merge;
mod pattern;

use crate::environment::{Environment, VariableFile};
use crate::error::Report;
use crate::files::{self, MAX_TEXT};
use crate::quote::quote;
use crate::tree::{Node, NodeId, Nodes, Table, Value};
use crate::{env, syntax};
use merge::Merge;
use pattern::Pattern;

/// Variables of the environment that would set the key.
const VARIABLES: [&str; 2] = ["PENSTOCK_INCLUDE", "PENSTOCK_INCLUDE_FILE"];

/// Name of the key.
pub(crate) const KEY: &str = "include";

/// Where the texts of included files come from.
#[derive(Clone, Copy)]
pub(crate) enum From<'a> {
    Disk,
    /// They were read before.
    Joined(&'a [files::File<'a>]),
}

/// The sections of all files.
pub(crate) struct Included {
    pub(crate) root: Table,
    /// Files, and directories of patterns, that a reload reads.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) variables: Vec<VariableFile>,
}

/// Parses the first file, and the files that it includes. `None` if one of them cannot be used.
pub(crate) fn read(
    name: &str,
    text: &str,
    from: From<'_>,
    nodes: &mut Nodes,
    report: &mut Report,
    env: &Environment,
) -> Option<Included> {
    let first = Path::new(name);
    let base = first.parent().unwrap_or(Path::new("")).to_owned();
    let mut reader = Reader {
        base,
        env,
        nodes,
        report,
        seen: HashMap::from([(plain(first), None)]),
        merge: Merge::default(),
        included: Included { root: Table::default(), paths: Vec::new(), variables: Vec::new() },
        usable: true,
    };
    if let Some(at) = files::forbidden(text) {
        reader.forbidden(at);
    }
    if let Some(variable) = VARIABLES.iter().find(|variable| env.get(variable).is_some()) {
        let message = "a variable cannot set `include`: it is read before the variables";
        let draft = reader.report.outside(format!("environment {variable}"), message);
        drop(draft.hint("set it in the file, as in include = [\"${SITE:-default}.toml\"]"));
        reader.usable = false;
    }
    let root = syntax::read(text, 0, reader.nodes, reader.report)?;
    let wanted = reader.take(root, None);
    match from {
        From::Disk => reader.follow(&wanted, &mut vec![plain(first)]),
        From::Joined(rest) => {
            for file in rest {
                let shown = reader.base.join(file.path.unwrap_or_default()).display().to_string();
                let start = reader.report.add_file(file.path.unwrap_or_default(), shown, file.text);
                match syntax::read(file.text, start, reader.nodes, reader.report) {
                    // What it includes is among the files.
                    Some(table) => drop(reader.take(table, file.path)),
                    None => reader.usable = false,
                }
            }
        }
    }
    reader.usable.then_some(reader.included)
}

struct Reader<'a> {
    /// Directory of the first file.
    base: PathBuf,
    env: &'a Environment,
    nodes: &'a mut Nodes,
    report: &'a mut Report,
    /// Files so far, with the entry that includes each.
    seen: HashMap<PathBuf, Option<NodeId>>,
    merge: Merge,
    included: Included,
    usable: bool,
}

/// A pattern in a file.
struct Wanted {
    id: NodeId,
    pattern: Pattern,
}

impl Reader<'_> {
    /// Takes the sections of a file. Returns what it includes.
    fn take(&mut self, mut table: Table, path: Option<&str>) -> Vec<Wanted> {
        let own = table.entries.iter().position(|(key, _)| key == KEY).map(|at| table.entries.remove(at));
        self.merge.add(&mut self.included.root, table, self.nodes, self.report);
        let Some(entry) = own else { return Vec::new() };
        let mut alone = Table { entries: vec![entry] };
        self.included.variables.extend(env::substitute(&mut alone, self.nodes, self.env, self.report));
        let Some((key, node)) = alone.entries.pop() else { return Vec::new() };
        let directory = path.and_then(|path| Path::new(path).parent()).unwrap_or(Path::new(""));
        let Some(wanted) = self.patterns(&node, directory) else { return Vec::new() };
        self.included.paths.extend(wanted.iter().map(|wanted| self.base.join(wanted.pattern.need())));
        if path.is_none() {
            self.included.root.push(key, node);
        }
        wanted
    }

    /// Reads the value of the key.
    fn patterns(&mut self, node: &Node, directory: &Path) -> Option<Vec<Wanted>> {
        let entries = match &node.value {
            Value::List(list) => list.as_slice(),
            _ => std::slice::from_ref(node),
        };
        let mut wanted = Vec::new();
        for entry in entries {
            let pattern = match &entry.value {
                Value::Text(text) => Pattern::parse(text, directory).map_err(|why| {
                    let shown = self.nodes.show(entry.id, text);
                    format!("{shown} {why}")
                }),
                _ => Err("a path or a list of paths is expected here".to_owned()),
            };
            match pattern {
                Ok(pattern) => wanted.push(Wanted { id: entry.id, pattern }),
                Err(why) => {
                    let draft = self.report.at(self.nodes, entry.id, why);
                    drop(draft.hint("write it as include = [\"conf.d/*.toml\"]"));
                    self.usable = false;
                }
            }
        }
        self.usable.then_some(wanted)
    }

    /// Reads the files of patterns, and what they include. `above` are the files that lead here.
    fn follow(&mut self, wanted: &[Wanted], above: &mut Vec<PathBuf>) {
        for Wanted { id, pattern } in wanted {
            let found = match pattern.files(&self.base, self.env) {
                Ok(found) => found,
                Err(why) => {
                    self.refuse(*id, &why, "");
                    continue;
                }
            };
            for path in found {
                self.file(*id, &path, above);
            }
        }
    }

    fn file(&mut self, id: NodeId, path: &Path, above: &mut Vec<PathBuf>) {
        let real = plain(&self.base.join(path));
        let shown = quote(&path.display().to_string());
        if above.contains(&real) {
            let message = format!("{shown} would include itself again");
            return self.refuse(id, &message, "a file may not include what includes it");
        }
        if let Some(first) = self.seen.get(&real) {
            let place = first.map_or(String::new(), |first| self.report.whereabouts(self.nodes, first));
            let message = format!("{shown} is included twice");
            return self.refuse(id, &message, &format!("the first time is{place}: keep one of them"));
        }
        if above.len() > MOST_DEEP {
            let message = format!("{shown} is included by the {MOST_DEEP}th file in a row");
            return self.refuse(id, &message, "include it from a file further up");
        }
        if self.seen.len() > MOST_FILES {
            return self.refuse(id, &format!("these are more than {MOST_FILES} files"), "put some together");
        }
        self.seen.insert(real.clone(), Some(id));
        let text = match self.text(path) {
            Ok(text) => text,
            Err(why) => return self.refuse(id, &format!("{shown} {why}"), ""),
        };
        let start = self.report.add_file(&path.display().to_string(), self.shown(path), &text);
        if let Some(at) = files::forbidden(&text) {
            self.forbidden(start + at);
        }
        match syntax::read(&text, start, self.nodes, self.report) {
            Some(table) => {
                let wanted = self.take(table, path.to_str());
                above.push(real);
                self.follow(&wanted, above);
                above.pop();
            }
            None => self.usable = false,
        }
    }

    fn text(&self, path: &Path) -> Result<String, String> {
        let bytes = (self.env.read)(&self.base.join(path), MAX_TEXT)
            .map_err(|error| format!("cannot be read: {error}"))?;
        if bytes.len() + self.report.text().len() > MAX_TEXT {
            return Err(format!("makes the configuration longer than {} MiB", MAX_TEXT >> 20));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            format!("is not UTF-8: byte 0x{:02x} in line {line}", error.as_bytes()[at])
        })?;
        Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
    }

    fn shown(&self, path: &Path) -> String {
        self.base.join(path).display().to_string()
    }

    fn forbidden(&mut self, at: usize) {
        let message = format!("a line may not begin with {}", quote(files::MARK.trim_end()));
        let draft = self.report.stretch(Some(at..at + files::MARK.len()), message);
        drop(draft.hint("`penstock ctl show` begins each file so: put each into its own file"));
        self.usable = false;
    }

    fn refuse(&mut self, id: NodeId, message: &str, hint: &str) {
        let draft = self.report.at(self.nodes, id, message);
        drop(draft.maybe_hint((!hint.is_empty()).then(|| hint.to_owned())));
        self.usable = false;
    }
}

/// The path without `.` and `..`: two ways to write it are one file.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

/// Largest number of files in a row, each of which includes the next.
const MOST_DEEP: usize = 4;

const MOST_FILES: usize = 1000;
