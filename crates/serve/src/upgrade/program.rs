//! Which program an upgrade may run, and with which arguments.
//!
//! Who asks the guardian may be an attacker who has the process that serves, and is restricted there. So the guardian runs only programs that
//! were named when the front door started, and only if no other user can have put another file there.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Hidden option of `penstock serve` with which the new process is started.
const TAKE_OVER: &str = "--take-over";

/// How the front door was started, for the next process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Path of the program, and what `--allow-upgrade` names: programs, or directories of programs.
    pub allowed: Vec<PathBuf>,
    /// Arguments after the name of the program.
    pub arguments: Vec<OsString>,
}

impl Launch {
    /// Reads how this process was started. `None` if its program cannot be found.
    pub fn read(further: &[PathBuf]) -> Option<Self> {
        let mut words = std::env::args_os();
        let named = words.next().and_then(|name| named(&name));
        let program = named.or_else(|| fs::read_link("/proc/self/exe").ok())?;
        let arguments = words.filter(|word| word != TAKE_OVER).collect();
        Some(Self { allowed: std::iter::once(program).chain(further.iter().cloned()).collect(), arguments })
    }

    /// Arguments with which the next process takes over.
    pub(super) fn taking_over(&self) -> Vec<OsString> {
        let mut arguments = self.arguments.clone();
        // After the word `serve`: the last argument may be behind `--`.
        arguments.insert(arguments.len().min(1), TAKE_OVER.into());
        arguments
    }
}

/// The path by which this process was started, if it still leads to its program: a link may lead to another version by the next
/// upgrade, and the path without links would not.
fn named(name: &OsStr) -> Option<PathBuf> {
    let path = match Path::new(name).components().count() {
        0 => return None,
        1 if !name.as_encoded_bytes().contains(&b'/') => {
            let all = std::env::var_os("PATH")?;
            std::env::split_paths(&all).map(|directory| directory.join(name)).find(|path| path.is_file())?
        }
        _ => std::path::absolute(name).ok()?,
    };
    let same = |one: Metadata, other: Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    same(fs::metadata(&path).ok()?, fs::metadata("/proc/self/exe").ok()?).then_some(path)
}

/// Returns the path of the program to run. `None` asks for the one that was started.
pub(super) fn permitted(allowed: &[PathBuf], asked: Option<&Path>) -> Result<PathBuf, String> {
    let path = match (asked, allowed.first()) {
        (Some(asked), _) => asked,
        (None, Some(first)) => first,
        (None, None) => return Err("it is not known which program was started: name one".to_owned()),
    };
    let shown = path.display();
    let is_plain = path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    let is_allowed = |one: &PathBuf| path == one || one.is_dir() && path.starts_with(one);
    if !is_plain || !allowed.iter().any(is_allowed) {
        let list: Vec<_> = allowed.iter().map(|path| path.display().to_string()).collect();
        return Err(format!(
            "{shown} is not among the programs that may be run: {}\n  hint: put the new version there, or name its path at the start: penstock serve --allow-upgrade PATH",
            list.join(", ")
        ));
    }
    let real = path.canonicalize().map_err(|error| format!("{shown}: {error}"))?;
    let own = nix::unistd::getuid().as_raw();
    // A link must not be replaced either.
    for part in real.ancestors().chain(path.ancestors().skip(1)) {
        let facts = part.metadata().map_err(|error| format!("{}: {error}", part.display()))?;
        if let Some(why) = distrusted(&facts, own) {
            return Err(format!(
                "{shown} is not run: {} {why}, so that user decides what would run with the rights of the server",
                part.display()
            ));
        }
    }
    match real.metadata() {
        Ok(facts) if facts.is_file() && facts.mode() & 0o111 != 0 => Ok(path.to_owned()),
        Ok(facts) if facts.is_file() => Err(format!("{shown} cannot be executed (chmod +x {shown})")),
        _ => Err(format!("{shown} is no file")),
    }
}

/// Why a file or directory is not trusted: other users than root and `own` can change it.
fn distrusted(facts: &Metadata, own: u32) -> Option<&'static str> {
    // In a directory like /tmp only the owner of a file may replace it.
    let is_shared = facts.is_dir() && facts.mode() & 0o1000 != 0;
    if facts.uid() != 0 && facts.uid() != own {
        return Some("belongs to another user");
    }
    (facts.mode() & 0o022 != 0 && !is_shared).then_some("can be written by other users")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn program(path: &Path, mode: u32) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_programs_that_were_named_at_the_start_are_run() {
        let base = tempfile::tempdir().unwrap();
        let (old, new, inner) =
            (base.path().join("old"), base.path().join("new"), base.path().join("d/inner"));
        fs::create_dir(base.path().join("d")).unwrap();
        for path in [&old, &new, &inner] {
            program(path, 0o755);
        }
        let allowed = [old.clone(), base.path().join("d")];
        assert_eq!(permitted(&allowed, None).unwrap(), old);
        assert_eq!(permitted(&allowed, Some(&inner)).unwrap(), inner);
        for other in [&new, &base.path().join("d/../new"), Path::new("old"), &base.path().join("d")] {
            let why = permitted(&allowed, Some(other)).unwrap_err();
            assert!(
                why.contains("is not among the programs that may be run: ") || why.ends_with("is no file"),
                "{why}"
            );
        }
        assert!(permitted(&[], None).is_err());
    }

    #[test]
    fn a_program_that_other_users_can_change_is_not_run() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("p");
        let try_it = || permitted(std::slice::from_ref(&path), None);
        program(&path, 0o775);
        assert!(try_it().unwrap_err().contains("can be written by other users"));
        program(&path, 0o644);
        assert!(try_it().unwrap_err().contains("cannot be executed"));
        program(&path, 0o755);
        try_it().unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(try_it().unwrap_err().contains("can be written by other users"));
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        try_it().unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_file(&path).unwrap();
        symlink("real", &path).unwrap();
        assert!(try_it().unwrap_err().contains("No such file"));
        program(&base.path().join("real"), 0o755);
        assert_eq!(try_it().unwrap(), path, "the link is followed by the kernel, and by the next upgrade");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(base.path().join("real"), Some(65534), None).unwrap();
            assert!(try_it().unwrap_err().contains("belongs to another user"));
        }
    }

    #[test]
    fn the_next_process_gets_the_same_arguments_and_the_option_once() {
        let launch = Launch {
            allowed: Vec::new(),
            arguments: ["serve", "--config", "x", "--", "y"].map(OsString::from).to_vec(),
        };
        assert_eq!(launch.taking_over(), ["serve", TAKE_OVER, "--config", "x", "--", "y"]);
    }
}
