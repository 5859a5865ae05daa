//! Directories for the files of a user, by one rule for all commands, as the XDG base directory specification says: an
//! XDG variable counts only if its value is an absolute path. Otherwise the directory is below HOME if HOME is an
//! absolute path, or else below the home directory in the password database, with the usual name.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User, geteuid};
use thiserror::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoDirectory {
    #[error(
        "no home directory: HOME is not an absolute path, and the password database has no home directory for uid {0}; set HOME"
    )]
    Home(Uid),
    #[error(
        "no {what} directory: neither {variable} nor HOME is an absolute path, and the password database has no home directory \
         for uid {uid}; set HOME or {variable}"
    )]
    Base { what: &'static str, variable: &'static str, uid: Uid },
}

/// Returns the home directory of the user.
///
/// # Errors
/// HOME is not an absolute path, and the password database has no home directory.
pub fn home() -> Result<PathBuf, NoDirectory> {
    home_of(&variable, &of_user).ok_or_else(|| NoDirectory::Home(geteuid()))
}

/// Returns `$XDG_CONFIG_HOME`, or else `~/.config`: the directory of all programs for configuration files.
///
/// # Errors
/// Neither the XDG variable, nor HOME, nor the password database gives an absolute path.
pub fn configuration_home() -> Result<PathBuf, NoDirectory> {
    base(&CONFIGURATION)
}

/// Returns the directory of penstock in [`configuration_home`], for files that people write.
///
/// # Errors
/// Neither the XDG variable, nor HOME, nor the password database gives an absolute path.
pub fn configuration() -> Result<PathBuf, NoDirectory> {
    Ok(base(&CONFIGURATION)?.join(OURS))
}

/// Returns `$XDG_STATE_HOME/penstock`, or else `~/.local/state/penstock`, for files that penstock keeps between runs.
///
/// # Errors
/// Neither the XDG variable, nor HOME, nor the password database gives an absolute path.
pub fn state() -> Result<PathBuf, NoDirectory> {
    Ok(base(&STATE)?.join(OURS))
}

/// Returns `$XDG_CACHE_HOME/penstock`, or else `~/.cache/penstock`, for files that penstock can create again.
///
/// # Errors
/// Neither the XDG variable, nor HOME, nor the password database gives an absolute path.
pub fn cache() -> Result<PathBuf, NoDirectory> {
    Ok(base(&CACHE)?.join(OURS))
}

/// Returns the directory for sockets: `$XDG_RUNTIME_DIR/penstock`, or else `/run/penstock` for root and
/// `/tmp/penstock-UID` for other users.
#[must_use]
pub fn runtime() -> PathBuf {
    runtime_of(&variable, geteuid())
}

/// Returns the XDG variables of this environment that are ignored, because their values are no absolute paths.
pub fn ignored() -> impl Iterator<Item = (&'static str, OsString)> {
    let names = [CONFIGURATION.variable, STATE.variable, CACHE.variable, RUNTIME];
    let set = names.into_iter().filter_map(|name| Some((name, variable(name)?)));
    set.filter(|(_, value)| !value.is_empty() && !Path::new(value).is_absolute())
}

/// A directory of the XDG base directory specification, with its variable and its usual place below the home directory.
struct Base {
    what: &'static str,
    variable: &'static str,
    below_home: &'static str,
}

const CONFIGURATION: Base =
    Base { what: "configuration", variable: "XDG_CONFIG_HOME", below_home: ".config" };
const STATE: Base = Base { what: "state", variable: "XDG_STATE_HOME", below_home: ".local/state" };
const CACHE: Base = Base { what: "cache", variable: "XDG_CACHE_HOME", below_home: ".cache" };
const RUNTIME: &str = "XDG_RUNTIME_DIR";
const OURS: &str = "penstock";

type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn base(base: &Base) -> Result<PathBuf, NoDirectory> {
    let Base { what, variable: name, .. } = *base;
    base_of(base, &variable, &of_user).ok_or_else(|| NoDirectory::Base {
        what,
        variable: name,
        uid: geteuid(),
    })
}

fn base_of(base: &Base, variable: Variable, of_user: &dyn Fn() -> Option<PathBuf>) -> Option<PathBuf> {
    let below_home = || Some(home_of(variable, of_user)?.join(base.below_home));
    absolute(variable, base.variable).or_else(below_home)
}

fn home_of(variable: Variable, of_user: &dyn Fn() -> Option<PathBuf>) -> Option<PathBuf> {
    absolute(variable, "HOME").or_else(of_user).filter(|home| home.is_absolute())
}

fn runtime_of(variable: Variable, uid: Uid) -> PathBuf {
    match absolute(variable, RUNTIME) {
        Some(directory) => directory.join(OURS),
        None if uid.is_root() => Path::new("/run").join(OURS),
        None => PathBuf::from(format!("/tmp/{OURS}-{uid}")),
    }
}

fn absolute(variable: Variable, name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name)
}

/// Returns the home directory in the password database (`getpwuid(3)`).
fn of_user() -> Option<PathBuf> {
    User::from_uid(geteuid()).ok().flatten().map(|user| user.dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_absolute_path_counts_of_the_variable_home_and_the_password_database() {
        let set = |xdg: &str, home: &str| {
            let (xdg, home) = (OsString::from(xdg), OsString::from(home));
            move |name: &str| match name {
                "XDG_STATE_HOME" => Some(xdg.clone()),
                "HOME" => Some(home.clone()),
                _ => None,
            }
        };
        let entry = || Some(PathBuf::from("/entry"));
        for (xdg, home, found) in [
            ("/state", "/home", "/state"),
            ("state", "/home", "/home/.local/state"),
            ("", "/home", "/home/.local/state"),
            ("./state", "home", "/entry/.local/state"),
            ("", "", "/entry/.local/state"),
        ] {
            assert_eq!(base_of(&STATE, &set(xdg, home), &entry), Some(found.into()), "{xdg:?} {home:?}");
        }
        assert_eq!(base_of(&STATE, &|_| None, &entry), Some("/entry/.local/state".into()));
        for odd in [None, Some(PathBuf::new()), Some("entry".into())] {
            assert_eq!(base_of(&STATE, &set("state", "home"), &|| odd.clone()), None, "{odd:?}");
            assert_eq!(home_of(&|_| None, &|| odd.clone()), None, "{odd:?}");
        }
    }

    #[test]
    fn runtime_directory_without_its_variable_is_that_of_the_user() {
        let set = |path: &'static str| move |name: &str| (name == "XDG_RUNTIME_DIR").then(|| path.into());
        let (root, other) = (Uid::from_raw(0), Uid::from_raw(1000));
        assert_eq!(runtime_of(&set("/r"), other), Path::new("/r/penstock"));
        assert_eq!(runtime_of(&set("r"), root), Path::new("/run/penstock"));
        assert_eq!(runtime_of(&|_| None, other), Path::new("/tmp/penstock-1000"));
    }

    #[test]
    fn error_names_what_to_set() {
        let uid = Uid::from_raw(54_321);
        let state = NoDirectory::Base { what: "state", variable: "XDG_STATE_HOME", uid };
        let said = "no state directory: neither XDG_STATE_HOME nor HOME is an absolute path, and the password database has no home \
                    directory for uid 54321; set HOME or XDG_STATE_HOME";
        assert_eq!(state.to_string(), said);
        assert!(NoDirectory::Home(uid).to_string().ends_with("for uid 54321; set HOME"));
    }
}
