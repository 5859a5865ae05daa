//! Programs in the directory of a lab that see its hosts and nothing of the user's: `penstock`, `mpssh`, `ssh`, `scp`, `sftp`.

use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use crate::paste::quote;

/// Writes them to `bin` of the lab's directory, and gives where that is.
///
/// Scripts, because `ssh` takes no configuration from the environment, and because a home that is set for a whole shell
/// would take the user's own files from everything else that runs there.
///
/// # Errors
/// They cannot be written, or nobody knows where this program is.
pub fn write(lab: &Path) -> io::Result<PathBuf> {
    let directory = lab.join("bin");
    fs::create_dir_all(&directory)?;
    let file = |name: &str| quote(&lab.join(name));
    let ours = quote(&env::current_exe()?);
    let home = format!(
        "LAB={} HOME={} XDG_CONFIG_HOME={} XDG_STATE_HOME={} PATH={}:\"$PATH\"\n\
         export LAB HOME XDG_CONFIG_HOME XDG_STATE_HOME PATH\nexec {ours}",
        quote(lab),
        file("home"),
        file("config"),
        file("state"),
        quote(&directory)
    );
    script(&directory.join("penstock"), format_args!("{home}"))?;
    script(&directory.join("mpssh"), format_args!("{home} run --mpssh"))?;
    for name in ["ssh", "scp", "sftp"] {
        if let Some(program) = found(name, &directory) {
            script(
                &directory.join(name),
                format_args!("exec {} -F {}", quote(&program), file("ssh_config")),
            )?;
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

fn script(path: &Path, words: fmt::Arguments<'_>) -> io::Result<()> {
    // A shell that runs the one of the last time reads it to its end.
    let mut new = OsString::from(path);
    new.push(".new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(&new)?;
    file.set_permissions(Permissions::from_mode(0o700))?;
    write!(file, "#!/bin/sh\n# Written by penstock lab.\n{words} \"$@\"\n")?;
    drop(file);
    fs::rename(&new, path)
}
