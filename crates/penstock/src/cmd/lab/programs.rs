//! Programs in the directory of a lab that see its hosts and nothing of the user's: `penstock`, `mpssh`, `ssh`, `scp`, `sftp`.

use std::env;
use std::path::{Path, PathBuf};

use ssh::lab::Lab;

use crate::output::Failure;
use crate::paste::quote;

/// Writes them to `bin` of the lab's directory, and gives where that is.
///
/// Scripts, because `ssh` takes no configuration from the environment, and because a home that is set for a whole shell
/// would take the user's own files from everything else that runs there.
///
/// # Errors
/// They cannot be written, or nobody knows where this program is.
pub fn write(lab: &Lab) -> Result<PathBuf, Failure> {
    let place = lab.directory();
    let directory = place.join("bin");
    let file = |name: &str| quote(&place.join(name));
    let ours = quote(&env::current_exe()?);
    let home = format!(
        "LAB={} HOME={} XDG_CONFIG_HOME={} XDG_STATE_HOME={} PATH={}:\"$PATH\"\n\
         export LAB HOME XDG_CONFIG_HOME XDG_STATE_HOME PATH\nexec {ours}",
        quote(place),
        file("home"),
        file("config"),
        file("state"),
        quote(&directory)
    );
    let script = |name: &str, words: &str| -> Result<(), Failure> {
        let script = format!("#!/bin/sh\n# Written by penstock lab.\n{words} \"$@\"\n");
        lab.add_program(name, &script).map(drop).map_err(super::failure)
    };
    script("penstock", &home)?;
    script("mpssh", &format!("{home} run --mpssh"))?;
    for name in ["ssh", "scp", "sftp"] {
        if let Some(program) = found(name, &directory) {
            script(name, &format!("exec {} -F {}", quote(&program), file("ssh_config")))?;
        }
    }
    Ok(directory)
}

/// Where a shell finds a program that is not one of ours.
fn found(name: &str, ours: &Path) -> Option<PathBuf> {
    let directories = env::var_os("PATH")?;
    let elsewhere = env::split_paths(&directories).filter(|directory| directory != ours);
    elsewhere.map(|directory| directory.join(name)).find(|file| file.is_file())
}
