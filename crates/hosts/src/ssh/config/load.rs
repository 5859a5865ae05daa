//! Reads configuration files and their includes. [`Files`] reads each file once for all hosts.

use std::collections::HashMap;
use std::sync::Arc;

use super::algorithms::KnownAlgorithms;
use super::source::{self, Source};
use super::{Fault, Place, tokens};

pub trait Files {
    /// Reads a file; `None` if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read(&self, path: &str) -> Result<Option<File>, String>;

    /// Paths that match a pattern with `*`, `?` and `[...]`, sorted by name.
    ///
    /// # Errors
    /// The pattern is not valid.
    fn glob(&self, pattern: &str) -> Result<Vec<String>, String>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub text: String,
    pub owner: u32,
    /// Permissions, as in `st_mode`.
    pub mode: u32,
    /// Members of the group of the file.
    pub group: Group,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Only the owner of the file is a member.
    OwnerOnly,
    /// The group has other members, or its members are unknown.
    Others,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// File of the user, which may have to exist.
    pub user: Option<(String, Presence)>,
    /// System-wide file; not read if the operator chose another user file (`-F`).
    pub system: Option<String>,
    /// Home directory of the user, for `~` and `~/.ssh`.
    pub home: String,
    pub uid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The operator named the file: it must exist, and its permissions are not checked.
    Required,
    /// The file is read if it exists. It is refused if another user can write to it.
    Optional,
}

#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub sources: Vec<Arc<Source>>,
    pub faults: Vec<Fault>,
}

pub(super) fn load(
    wanted: &Sources,
    files: &dyn Files,
    known: &KnownAlgorithms,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Loaded {
    let mut loader =
        Loader { wanted, files, known, environment, stack: Vec::new(), read: HashMap::new(), count: 0 };
    let mut loaded = Loaded::default();
    let user = wanted.user.iter().map(|(path, presence)| (path, *presence, Whose::User));
    let system = wanted.system.iter().map(|path| (path, Presence::Optional, Whose::System));
    for (path, presence, whose) in user.chain(system) {
        // The system administrator owns the system-wide file, with any user id.
        let check = match (presence, whose) {
            (Presence::Optional, Whose::User) => Check::Permissions,
            _ => Check::Nothing,
        };
        let source = loader.file(path, whose, check, &mut loaded.faults);
        if source.is_none() && presence == Presence::Required && loaded.faults.is_empty() {
            let place = Place { file: path.as_str().into(), line: 0 };
            loaded.faults.push(Fault::new(&place, "there is no such file".to_owned(), None));
        }
        loaded.sources.extend(source);
    }
    loaded
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Whose {
    User,
    System,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Permissions,
    Nothing,
}

struct Loader<'a> {
    wanted: &'a Sources,
    files: &'a dyn Files,
    known: &'a KnownAlgorithms,
    environment: &'a dyn Fn(&str) -> Option<String>,
    /// Files that are being read, the innermost last.
    stack: Vec<String>,
    read: HashMap<(String, Whose), Arc<Source>>,
    count: usize,
}

impl Loader<'_> {
    fn file(
        &mut self,
        path: &str,
        whose: Whose,
        check: Check,
        faults: &mut Vec<Fault>,
    ) -> Option<Arc<Source>> {
        let place = Place { file: path.into(), line: 0 };
        let mut fail = |what: String, hint: Option<String>| {
            faults.push(Fault::new(&place, what, hint));
            None
        };
        if self.stack.iter().any(|open| open == path) {
            return fail("it includes itself, directly or through other files".to_owned(), None);
        }
        if self.stack.len() > DEEPEST {
            return fail(format!("files include each other more than {DEEPEST} deep"), None);
        }
        if let Some(source) = self.read.get(&(path.to_owned(), whose)) {
            return Some(source.clone());
        }
        let file = match self.files.read(path) {
            Ok(Some(file)) => file,
            Ok(None) => return None,
            Err(why) => return fail(format!("it cannot be read: {why}"), None),
        };
        if check == Check::Permissions
            && let Some(why) = file.untrusted(self.wanted.uid)
        {
            let hint = format!(
                "`chown {} {path}; chmod go-w {path}`, after a look at what is in it",
                self.wanted.uid
            );
            return fail(why, Some(hint));
        }
        if file.text.len() > LARGEST || self.count >= MOST {
            return fail(format!("more than {LARGEST} bytes in a file, or more than {MOST} files"), None);
        }
        self.count += 1;
        self.stack.push(path.to_owned());
        let name: Arc<str> = path.into();
        let known = self.known;
        let mut include = |place: &Place, pattern: &str, faults: &mut Vec<Fault>| {
            self.include(place, pattern, whose, faults)
        };
        let source = Arc::new(source::parse(&name, &file.text, known, faults, &mut include));
        self.stack.pop();
        self.read.insert((path.to_owned(), whose), source.clone());
        Some(source)
    }

    fn include(
        &mut self,
        place: &Place,
        pattern: &str,
        whose: Whose,
        faults: &mut Vec<Fault>,
    ) -> Vec<Arc<Source>> {
        let path = match self.anchored(pattern, whose) {
            Ok(path) => path,
            Err(why) => {
                faults.push(Fault::new(place, format!("include: {why}"), None));
                return Vec::new();
            }
        };
        match self.files.glob(&path) {
            Ok(paths) => {
                paths.iter().filter_map(|path| self.file(path, whose, Check::Permissions, faults)).collect()
            }
            Err(why) => {
                faults.push(Fault::new(place, format!("include: {path}: {why}"), None));
                Vec::new()
            }
        }
    }

    /// Makes the pattern absolute: a relative one starts in `~/.ssh` or, in the system-wide file, in `/etc/ssh`.
    fn anchored(&self, pattern: &str, whose: Whose) -> Result<String, String> {
        if pattern.replace("%%", "").contains('%') {
            return Err(format!(
                "\"{pattern}\" depends on the host, which is not supported: name the files, or use --engine openssh"
            ));
        }
        let pattern = tokens::environment(pattern, self.environment)?;
        let home = self.wanted.home.trim_end_matches('/');
        if let Some(rest) = pattern.strip_prefix('~') {
            return match (whose, rest.is_empty() || rest.starts_with('/')) {
                (Whose::System, _) => Err("a file of the system cannot include one of a user".to_owned()),
                (Whose::User, true) => Ok(format!("{home}{rest}")),
                (Whose::User, false) => Err(format!("\"{pattern}\" is another user's: give the whole path")),
            };
        }
        Ok(match (pattern.starts_with('/'), whose) {
            (true, _) => pattern,
            (false, Whose::User) => format!("{home}/.ssh/{pattern}"),
            (false, Whose::System) => format!("/etc/ssh/{pattern}"),
        })
    }
}

impl File {
    /// Reason why the file cannot be trusted: another user may have written to it.
    fn untrusted(&self, uid: u32) -> Option<String> {
        if self.owner != 0 && self.owner != uid {
            return Some(format!("it belongs to user {}, who can change it", self.owner));
        }
        let writable = self.mode & 0o022;
        match (writable & 0o002 != 0, writable & 0o020 != 0 && self.group == Group::Others) {
            (true, _) => Some(format!("every user can write to it (mode {:03o})", self.mode & 0o777)),
            (_, true) => Some(format!("its group can write to it (mode {:03o})", self.mode & 0o777)),
            _ => None,
        }
    }
}

/// Limit of nested includes, as in OpenSSH.
const DEEPEST: usize = 16;
/// Limit of the number of files, with all includes.
const MOST: usize = 4096;
const LARGEST: usize = 16 << 20;
