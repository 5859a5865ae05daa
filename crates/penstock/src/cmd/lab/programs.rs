//! Programs in a lab's directory that use only its hosts and configuration: `penstock`, `mpssh`, `ssh`, `scp`, `sftp`.

use std::env;
use std::path::{Path, PathBuf};
use text::shell;

use lab::Lab;

use crate::output::Failure;

/// Writes the programs into `bin` of the lab's directory, and returns the path of `bin`.
///
/// They are scripts, because `ssh` reads no configuration path from the environment, and because another HOME for the
/// whole shell would hide the user's files from all other programs.
///
/// # Errors
/// The scripts cannot be written, or the path of this program is unknown.
pub(super) fn write(lab: &Lab) -> Result<PathBuf, Failure> {
    let place = lab.directory();
    let directory = directory(place);
    let file = |name: &str| shell::path(&place.join(name));
    let ours = shell::path(&env::current_exe()?);
    let home = format!(
        "LAB={} HOME={} XDG_CONFIG_HOME={} XDG_STATE_HOME={} PATH={}:\"$PATH\"\n\
         export LAB HOME XDG_CONFIG_HOME XDG_STATE_HOME PATH\nexec {ours}",
        shell::path(place),
        file("home"),
        file("config"),
        file("state"),
        shell::path(&directory)
    );
    let script = |name: &str, words: &str| -> Result<(), Failure> {
        let script = format!("#!/bin/sh\n# Written by penstock lab.\n{words} \"$@\"\n");
        lab.add_program(name, &script).map(drop).map_err(super::failure)
    };
    script("penstock", &home)?;
    script("mpssh", &format!("{home} run --mpssh"))?;
    for name in ["ssh", "scp", "sftp"] {
        if let Some(program) = found(name, &directory) {
            script(name, &format!("exec {} -F {}", shell::path(&program), file("ssh_config")))?;
        }
    }
    Ok(directory)
}

/// Directory of the programs of the lab in `place`.
pub(super) fn directory(place: &Path) -> PathBuf {
    place.join("bin")
}

/// Finds a program in PATH outside of `ours`.
fn found(name: &str, ours: &Path) -> Option<PathBuf> {
    let directories = env::var_os("PATH")?;
    let elsewhere = env::split_paths(&directories).filter(|directory| directory != ours);
    elsewhere.map(|directory| directory.join(name)).find(|file| file.is_file())
}
