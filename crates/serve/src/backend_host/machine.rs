//! This machine as `penstock backend` changes it: settings of the kernel, programs, and what can go wrong with them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use logic::dsr::backend_host::settings::Set;
use logic::dsr::backend_host::{Facts, Key, LOOPBACK};

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("there is no network interface \"{0}\": `ip link` shows them")]
    NoInterface(String),
    #[error("packets of clients do not come in on {LOOPBACK}: name the interface on which they do")]
    OnLoopback,
    #[error("cannot read the network of this machine: {0}")]
    Network(#[source] io::Error),
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot write {0}: {1}{hint}", hint = as_root(.1))]
    Write(PathBuf, #[source] io::Error),
    #[error("{0} was not written by penstock: nothing is changed; move it away, or do without --persist")]
    Foreign(PathBuf),
    #[error(
        "{0} is damaged ({1}): what was there before the set-up is not known; move it away, and take back by hand what it names"
    )]
    Damaged(PathBuf, String),
    #[error("another `penstock backend` uses {0} at the moment")]
    Busy(PathBuf),
    #[error("`{0}` failed: {1}")]
    Program(String, String),
    #[error("there is no record {0}: nothing was set up here by penstock, so nothing is taken back")]
    NoRecord(PathBuf),
}

fn as_root(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ": this needs root",
        _ => "",
    }
}

/// Reads a setting of the kernel. That of an interface that does not exist has no value.
pub(super) fn read_setting(facts: &mut Facts, conf: &str, key: Key) -> Result<(), HostError> {
    let path = setting_path(&Set { conf: conf.to_owned(), key, to: 0 });
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let value = text.trim().parse().unwrap_or(0);
            facts.settings.insert((conf.to_owned(), key), value);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(HostError::Read(path, error)),
    }
}

pub(super) fn setting_path(set: &Set) -> PathBuf {
    Path::new("/proc/sys").join(set.path())
}

/// Runs a program, which is in this package. Returns what it prints.
pub(super) fn program(name: &str, words: &[&str], package: &str) -> Result<String, HostError> {
    let failed = |why: String| HostError::Program(format!("{name} {}", words.join(" ")), why);
    let output = match Command::new(name).args(words).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(failed(format!("there is no such program: install {package}")));
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
