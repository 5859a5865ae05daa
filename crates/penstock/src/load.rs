//! Reads the inputs of `config`, which does no input itself: the file, standard input, the environment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use config::{Environment, Loaded, Source};

use crate::output::{Failure, plain};

/// Returns the environment of this process. A value that is not UTF-8 is converted, and refused where it is used. A
/// credential of systemd (systemd.exec(5), `LoadCredential=`) is a file of the variable that it is named like.
pub(crate) fn environment() -> Environment {
    let mut variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    let credentials = variables.get("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    // A directory that cannot be read has no credentials for this process.
    let files = credentials.and_then(|directory| std::fs::read_dir(directory).ok()).into_iter().flatten();
    for file in files.flatten() {
        let Ok(name) = file.file_name().into_string() else { continue };
        let path = file.path().to_string_lossy().into_owned();
        if !variables.contains_key(&name) {
            variables.entry(format!("{name}_FILE")).or_insert(path);
        }
    }
    Environment { variables, read: |path, limit| sys::file::read(path, limit as u64), list: sys::file::names }
}

/// Reads the text of a configuration file; `-` is standard input.
pub(crate) fn source(path: &Path) -> Result<Source, Failure> {
    let (name, bytes) = if path.as_os_str() == "-" {
        ("standard input".to_owned(), read(io::stdin().lock()))
    } else {
        (path.display().to_string(), File::open(path).and_then(read))
    };
    let bytes = bytes.map_err(|error| unreadable(&name, &error))?;
    Source::from_bytes(name, bytes).map_err(|faults| Failure::Usage(faults.render()))
}

/// Reads and parses a configuration file. Faults are returned as formatted text.
pub(crate) fn file(path: &Path, environment: &Environment) -> Result<Loaded, Failure> {
    let name = path.display().to_string();
    // `check` may read a pipe once; a server reads the file again at each reload: accept only regular files.
    let bytes = sys::file::read(path, config::MAX_TEXT as u64).map_err(|error| unreadable(&name, &error))?;
    let source = Source::from_bytes(name, bytes).map_err(|faults| Failure::Usage(faults.render()))?;
    config::load(&source, environment).map_err(|faults| Failure::Usage(faults.render()))
}

/// Configuration file of the service.
const USUAL: &str = "/etc/penstock/penstock.toml";

/// Returns the file that an option names, else the one that `PENSTOCK_CONFIG` names, else that of the service if it exists.
pub(crate) fn usual(named: Option<&Path>) -> Option<PathBuf> {
    let by_environment =
        || std::env::var_os("PENSTOCK_CONFIG").filter(|name| !name.is_empty()).map(PathBuf::from);
    let of_service = || Path::new(USUAL).exists().then(|| PathBuf::from(USUAL));
    named.map(Path::to_owned).or_else(by_environment).or_else(of_service)
}

/// Returns the control socket that a configuration file names; the variable is for a file that names none, because the file
/// is an option of the command line. Faults in other sections are ignored.
pub(crate) fn control_socket(path: &Path) -> Result<Option<PathBuf>, Failure> {
    let name = path.display().to_string();
    let cannot = |why: &str| {
        let shown = plain(&name);
        Failure::usage(format_args!(
            "cannot learn the control socket from {shown}: {why}\n  hint: penstock ctl --socket PATH names it"
        ))
    };
    let bytes = sys::file::read(path, config::MAX_TEXT as u64).map_err(|error| cannot(&error.to_string()))?;
    let environment = environment();
    let socket = Source::from_bytes(name.clone(), bytes).and_then(|source| {
        match config::control_socket(&source, &without_socket(&environment)) {
            Ok(Some(socket)) => Ok(Some(socket)),
            Ok(None) | Err(_) => config::control_socket(&source, &environment),
        }
    });
    socket.map_err(|faults| match cannot("its [control] section has faults, or the file is no TOML there") {
        Failure::Usage(text) => Failure::Usage(format!("{text}{}", faults.render())),
        other => other,
    })
}

/// The environment without the variable that names a control socket.
fn without_socket(environment: &Environment) -> Environment {
    let mut variables = environment.variables.clone();
    for name in ["PENSTOCK_CONTROL_SOCKET", "PENSTOCK_CONTROL_SOCKET_FILE"] {
        variables.remove(name);
    }
    Environment { variables, ..*environment }
}

/// Reads one byte more than the limit, so that `config` detects and refuses a longer file.
fn read(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(config::MAX_TEXT as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound => "check the path",
        ErrorKind::PermissionDenied => "run this as a user who may read it",
        ErrorKind::IsADirectory => "name a file in it",
        _ => "check the path and the disk",
    };
    Failure::Usage(format!("error: {name}: cannot read the configuration: {error}\n  hint: {hint}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_file_and_directory_are_wrong_usage_and_name_the_path() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path().join("none.toml"), directory.path().to_owned()] {
            let Err(Failure::Usage(text)) = source(&path) else { panic!("{} was read", path.display()) };
            assert!(text.contains(&path.display().to_string()) && text.contains("hint: "), "{text}");
        }
    }
}
