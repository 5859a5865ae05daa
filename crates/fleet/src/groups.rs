//! Where groups of hosts come from: `$XDG_CONFIG_HOME/penstock/groups` (lines `name: set`) and `groups.yaml` beside it. What
//! they say is decided by `logic::fleet::groups`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use logic::fleet::groups::{Catalog, OWN, Upcall};

/// Reads the files in `directory`. Faults in them come as lines to show; what is right is taken.
#[must_use]
pub fn catalog(directory: Option<&Path>) -> (Catalog, Vec<String>) {
    let mut catalog = Catalog::new();
    let mut faults = Vec::new();
    catalog.add_default(OWN);
    let Some(directory) = directory else { return (catalog, faults) };
    let mut look = |path: PathBuf, take: &mut dyn FnMut(&mut Catalog, &str, &str) -> Vec<String>| {
        let place = path.display().to_string();
        catalog.looked_at(&place);
        match std::fs::read_to_string(&path) {
            Ok(text) => faults.extend(take(&mut catalog, &place, &text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => faults.push(format!("cannot read the groups in {place}: {error}")),
        }
    };
    look(directory.join("groups"), &mut |catalog, place, text| {
        let wrong = catalog.add_flat(OWN, place, text).err().unwrap_or_default();
        wrong.iter().map(ToString::to_string).collect()
    });
    look(directory.join("groups.yaml"), &mut |catalog, place, text| {
        catalog.add_yaml(place, text).err().iter().map(ToString::to_string).collect()
    });
    (catalog, faults)
}

/// Runs the command of a group source.
///
/// # Errors
/// It cannot be started, or did not end with 0.
pub fn call(upcall: &Upcall) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-c", &upcall.command]).stdin(Stdio::null());
    if !upcall.directory.is_empty() {
        command.current_dir(&upcall.directory);
    }
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", output.status, said.lines().next().unwrap_or_default()))
}
