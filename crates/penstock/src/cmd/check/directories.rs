//! Directories that a configuration names and that this machine lacks.

use std::path::Path;

use config::MachineFault;
use serve::paths::{self, Access};
use text::shell;

use crate::output::plain;

const STATE: &str = "process.state-directory";
const STORE: &str = "otp.store";

/// Finds missing directories in which the process makes files. Those of certificates have their own check, which also
/// reads what is in them.
pub(super) fn missing(config: &config::Config) -> Vec<MachineFault> {
    let needs = paths::of(config, None);
    // The directories of [acme] are in the state directory, and made with it.
    let ours = needs.iter().filter(|need| need.access == Access::Change && !need.key.starts_with("acme."));
    let mut faults: Vec<MachineFault> = Vec::new();
    for need in ours {
        let fault = match need.key.as_str() {
            STATE => missing_state(&need.path),
            STORE => missing_store(config, &need.path),
            _ => missing_parent(&need.path),
        };
        faults.extend(fault.map(|(message, hint)| MachineFault {
            key: need.key.clone(),
            message,
            hint: Some(hint),
        }));
    }
    faults
}

fn missing_parent(directory: &Path) -> Option<(String, String)> {
    let shown = plain(&directory.display().to_string());
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return None;
    }
    if directory.exists() {
        let message =
            format!("{shown} is no directory: nothing can be made in it, and the start would be refused");
        return Some((message, "name a directory, or remove the file in its place".to_owned()));
    }
    let message = format!("there is no directory {shown}: the start would be refused");
    let make = format!("make it: mkdir -p {}", shell::path(directory));
    // What systemd makes there is gone while the service does not run.
    let of_systemd =
        if directory.starts_with("/run") { ", or RuntimeDirectory= in the unit of systemd" } else { "" };
    Some((message, make + of_systemd))
}

/// An empty directory is no store: it lacks a journal and its key.
fn missing_store(config: &config::Config, directory: &Path) -> Option<(String, String)> {
    let otp = config.otp.as_ref()?;
    // What may not be looked at has another fault.
    if directory.join("journal").try_exists().unwrap_or(true) {
        return None;
    }
    let shown = plain(&directory.display().to_string());
    let message = format!("there is no store of tokens in {shown}: no one-time password is good");
    let make = format!(
        "make it: penstock otp init --store {} --key-file {} --owner USER, the user that penstock runs as",
        shell::path(directory),
        shell::path(&otp.key_file)
    );
    Some((message, make))
}

/// Penstock makes the state directory if it can: a name whose parent is missing too is a mistake more often than not.
fn missing_state(directory: &Path) -> Option<(String, String)> {
    let shown = plain(&directory.display().to_string());
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    if directory.is_dir() {
        return None;
    }
    let no_directory = directory.ancestors().find(|above| above.exists()).filter(|above| !above.is_dir());
    if let Some(file) = no_directory {
        let file = plain(&file.display().to_string());
        let message = format!("{file} is no directory: nothing would be kept over a restart");
        return Some((message, "name a directory, or remove the file in its place".to_owned()));
    }
    let parent = parent.filter(|parent| !parent.is_dir())?;
    let message = format!(
        "there is no directory {shown}, and none above it ({}): nothing is kept over a restart unless penstock may make both",
        plain(&parent.display().to_string())
    );
    let make = format!(
        "make it for the user that penstock runs as: install -d -m 0700 -o USER {}",
        shell::path(directory)
    );
    Some((message, make))
}
