//! The tunnels of the configuration, and the search for the file.

use std::path::{Path, PathBuf};

use config::{Fault, Faults};
use hosts::tunnel::plan::{Listen, Tunnel, Way, is_name};
use sys::directories;

use crate::load;
use crate::output::{Failure, complain, plain, plain_lines};

/// Tunnels of a configuration.
pub(super) struct Configured {
    pub file: PathBuf,
    pub tunnels: Vec<Tunnel>,
    /// Allowed settings that are probably not intended.
    warnings: Faults,
}

/// Returns the tunnel with this name.
pub(super) fn tunnel(config: Option<&PathBuf>, name: &str) -> Result<Tunnel, Failure> {
    let Configured { file, mut tunnels, warnings } = match found(config)? {
        Ok(configured) => configured,
        Err(searched) => return Err(nowhere(&searched, name)),
    };
    let at = tunnels.iter().position(|tunnel| *tunnel.name == *name);
    if let Some(at) = at {
        warn(&file, &tunnels[at], &warnings);
    }
    at.map(|at| tunnels.swap_remove(at)).ok_or_else(|| {
        let hint = match names(&tunnels) {
            None => format!("add [tunnel.{}] to {}", plain(name), shown(&file)),
            Some(names) => format!("there are: {names}"),
        };
        Failure::usage(format!("no tunnel is named \"{}\"\n  hint: {hint}", plain(name)))
    })
}

/// Prints the warnings about a tunnel's forwards that other machines can reach. `penstock check` prints the others.
fn warn(file: &Path, tunnel: &Tunnel, warnings: &Faults) {
    let is_open = |way: &Way| matches!(way.listen(), Listen::Tcp(address) if !address.ip().to_canonical().is_loopback());
    let open = tunnel.forwards.iter().filter(|forward| is_open(&forward.way));
    let keys: Vec<_> =
        open.map(|forward| format!("tunnel.{}.forward.{}.listen", tunnel.name, forward.name)).collect();
    for Fault { place, path, message, hint, .. } in warnings.iter().filter(|fault| keys.contains(&fault.path))
    {
        let line = place.map_or_else(String::new, |place| format!(":{}", place.line));
        let hint = hint.as_ref().map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
        complain(&plain_lines(&format!("warning: {}{line}: {path}: {message}{hint}\n", file.display())));
    }
}

/// Returns all tunnels of the configuration.
pub(super) fn tunnels(config: Option<&PathBuf>) -> Result<Configured, Failure> {
    found(config)?.map_err(|searched| nowhere(&searched, "NAME"))
}

/// Returns a hint that the configuration has no tunnel with this name. A running tunnel may come from another file.
pub(super) fn unknown(config: Option<&PathBuf>, name: &str) -> Option<String> {
    let Configured { file, tunnels, .. } = tunnels(config).ok()?;
    let is_known = tunnels.iter().any(|tunnel| *tunnel.name == *name);
    let names = names(&tunnels).filter(|_| !is_known)?;
    Some(format!("no tunnel has that name in {}: there are: {names}", shown(&file)))
}

/// Whether a configuration contains a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Yes,
    No,
    /// The configuration exists but cannot be read.
    Unclear,
}

/// Looks for the tunnel in the named configuration or the default one.
pub(super) fn knows(config: Option<&PathBuf>, name: &str) -> Known {
    match found(config) {
        Ok(Ok(configured)) if configured.tunnels.iter().any(|tunnel| *tunnel.name == *name) => Known::Yes,
        Ok(_) => Known::No,
        Err(_) => Known::Unclear,
    }
}

fn names(tunnels: &[Tunnel]) -> Option<String> {
    let names: Vec<_> = tunnels.iter().map(|tunnel| tunnel.name.as_ref()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Loads the named file, or the first default file that exists. The inner error lists the paths of the search.
fn found(config: Option<&PathBuf>) -> Result<Result<Configured, Vec<PathBuf>>, Failure> {
    let environment = load::environment();
    let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    let named = config.cloned().or_else(|| variable("PENSTOCK_CONFIG").map(PathBuf::from));
    // Without a home directory there is still the system's file.
    let usual = directories::configuration().ok().map(|ours| ours.join("penstock.toml"));
    let searched: Vec<PathBuf> = usual.into_iter().chain([PathBuf::from(OF_THE_SYSTEM)]).collect();
    // A file that cannot be examined counts as existing, so that reading it reports the error.
    let is_there = |path: &&PathBuf| !matches!(path.try_exists(), Ok(false));
    let Some(file) = named.or_else(|| searched.iter().find(is_there).cloned()) else {
        return Ok(Err(searched));
    };
    if matches!(file.try_exists(), Ok(false)) {
        return Err(missing(&file));
    }
    let loaded = load::file(&file, &environment)?;
    Ok(Ok(Configured { file, tunnels: loaded.config.tunnels, warnings: loaded.warnings }))
}

/// Reports a missing configuration, with its path and an example.
fn nowhere(searched: &[PathBuf], name: &str) -> Failure {
    let places: Vec<String> = searched.iter().map(|path| shown(path)).collect();
    let name = if is_name(name) { name } else { "NAME" };
    Failure::usage(format!(
        "no tunnel is configured: there is no {}
  hint: write {}, or name a file with --config or PENSTOCK_CONFIG. {}",
        places.join(" and no "),
        places.first().map_or("", String::as_str),
        example(name),
    ))
}

/// Reports that the file named by `--config` is missing, with an example of a tunnel to write into it.
fn missing(file: &Path) -> Failure {
    Failure::usage(format!(
        "there is no {}\n  hint: check the path, or write that file. {}",
        shown(file),
        example("NAME")
    ))
}

fn example(name: &str) -> String {
    format!(
        "For a database that web1 reaches:

[tunnel.{name}]
host = \"web1\"

[tunnel.{name}.forward.db]
connect = \"127.0.0.1:5432\"
"
    )
}

fn shown(path: &Path) -> String {
    plain(&path.display().to_string())
}

const OF_THE_SYSTEM: &str = "/etc/penstock/penstock.toml";
