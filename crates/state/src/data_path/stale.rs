//! Programs that earlier starts of this instance of penstock have left in the kernel for addresses that the configuration does
//! not have any more. Those of other instances, which may be about to start again, are left alone.
//!
//! 1. [`StalePrograms::find`] looks for them before anything is attached, and says whose the attached ones are. It refuses a
//!    start whose packets the program of another instance would take first: [`overlapping`].
//! 2. [`StalePrograms::remove`] takes them away, once everything else of the start has succeeded.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use config::Config;
use config::types::{BindAddress, DsrSettings, Listener};
use logic::dsr::Service;
use logic::dsr::image::service_of;
use sys::bpf::{StalePins, remove_empty};

use super::name_of;
use crate::lock::lock;

/// What [`super::open`] needs of the start that runs.
pub(super) struct Start {
    pub(super) owner: Option<String>,
    pub(super) stale: Vec<StalePins>,
}

pub(super) static START: Mutex<Start> = Mutex::new(Start { owner: None, stale: Vec::new() });

/// Programs that go once the start has succeeded. Without that they stay.
#[must_use]
pub struct StalePrograms {
    /// What is said of those of other instances.
    others: Vec<String>,
}

impl StalePrograms {
    /// Looks for them. `file` is that of the configuration.
    pub fn find(config: &Config, file: Option<&Path>) -> Result<Self, String> {
        remove_empty();
        let Left { owner, own: stale, others } = Left::find(config, file)?;
        let overlaps = overlaps(config, &others);
        if !overlaps.is_empty() {
            let lines = overlaps.iter().map(|Overlap { listener, vip, interface, why, command }| {
                format!("listener.{listener}: {vip} on {interface}: {why}: `{command}` as root ends it")
            });
            return Err(lines.collect::<Vec<_>>().join("\n"));
        }
        let others = others.iter().map(told).collect();
        *lock(&START) = Start { owner, stale };
        Ok(Self { others })
    }

    /// Their directories, as paths that need no right to those above them.
    pub fn directories(&self) -> Vec<PathBuf> {
        lock(&START).stale.iter().map(StalePins::directory).collect()
    }

    /// Whether CAP_NET_ADMIN is needed to take them away.
    pub fn needs_rights(&self) -> bool {
        lock(&START).stale.iter().any(StalePins::needs_rights)
    }

    /// Takes them away. Returns what is to be said of them, and of those that stay.
    pub fn remove(mut self) -> Vec<String> {
        let others = std::mem::take(&mut self.others);
        let stale = std::mem::take(&mut lock(&START).stale);
        let removed = stale.iter().map(|one| {
            let path = one.path().display();
            match one.remove() {
                Ok(()) => format!(
                    "a program of an earlier start was taken away: no dsr listener has its name, interface and address any more ({path})"
                ),
                Err(error) => format!(
                    "a program of an earlier start goes on forwarding, and cannot be taken away: {path}: {error}; `penstock ctl dsr detach {path}` as root ends it"
                ),
            }
        });
        removed.chain(others).collect()
    }
}

impl Drop for StalePrograms {
    /// A start that has failed leaves them.
    fn drop(&mut self) {
        lock(&START).stale.clear();
    }
}

/// Programs that no process has and that no start of the configuration takes over.
struct Left {
    owner: Option<String>,
    own: Vec<StalePins>,
    others: Vec<StalePins>,
}

impl Left {
    fn find(config: &Config, file: Option<&Path>) -> Result<Self, String> {
        let names = services(config)
            .map(|(listener, settings, vip)| name_of(&settings.interface, &listener.name, vip));
        let all = StalePins::all(&names.collect::<Vec<_>>())
            .map_err(|error| format!("programs of earlier starts cannot be looked for: {error}"))?;
        let socket = config.control.as_ref().map(|control| &*control.socket);
        let owner = owner(config.process.state_directory.as_deref(), file, socket);
        let (own, others) =
            all.into_iter().partition(|one| owner.is_some() && one.owner() == owner.as_deref());
        Ok(Self { owner, own, others })
    }
}

/// Each address of each `dsr` listener.
fn services(config: &Config) -> impl Iterator<Item = (&Listener, &DsrSettings, SocketAddr)> {
    let listeners = config.listeners.iter().filter_map(|listener| Some((listener, listener.dsr()?)));
    listeners.flat_map(|(listener, settings)| {
        let vips = listener.binds.iter().filter_map(BindAddress::vip);
        vips.map(move |vip| (listener, settings, vip))
    })
}

/// A service whose packets a program takes that another instance has left: this one would get none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    pub listener: String,
    pub vip: SocketAddr,
    pub interface: String,
    /// Whose program it is, and what follows.
    pub why: String,
    /// Ends the program, as root.
    pub command: String,
}

/// Services of a configuration, of this file, that a start refuses because of programs of other instances. Without the right to
/// look there are none.
pub fn overlapping(config: &Config, file: Option<&Path>) -> Result<Vec<Overlap>, String> {
    Left::find(config, file).map(|left| overlaps(config, &left.others))
}

fn overlaps(config: &Config, others: &[StalePins]) -> Vec<Overlap> {
    let mut all = Vec::new();
    for (listener, settings, vip) in services(config) {
        let own = Service { vip: vip.ip(), port: vip.port(), transports: settings.transports };
        let index = sys::packet::index_of(&settings.interface);
        let takes = |one: &&StalePins| match one.service() {
            Some(words) => {
                service_of(&words).is_some_and(|service| service.overlaps(&own))
                    && index.is_some_and(|index| one.is_on(index))
            }
            // Of another version, or without a right to bpf(2).
            None => one.is_named(&settings.interface, own.vip, own.port),
        };
        let others = others.iter().filter(takes);
        all.extend(others.map(|one| Overlap {
            listener: listener.name.to_string(),
            vip,
            interface: settings.interface.to_string(),
            why: format!(
                "{} has left a program that forwards these packets to its own backends, without health checks, and may start again",
                whose(one)
            ),
            command: format!("penstock ctl dsr detach {}", one.path().display()),
        }));
    }
    all
}

/// What tells this instance from others of the same machine: its state directory, or the file of its configuration, or its
/// control socket.
fn owner(state: Option<&Path>, file: Option<&Path>, socket: Option<&Path>) -> Option<String> {
    let all = [("state-directory", state), ("configuration", file), ("control socket", socket)];
    let (key, path) = all.into_iter().find_map(|(key, path)| Some((key, path?)))?;
    let path = std::path::absolute(path).ok()?;
    // The last part may be made, or replaced, between two starts.
    let parent = path.parent().and_then(|parent| std::fs::canonicalize(parent).ok());
    let path = match (&parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path,
    };
    // Two containers may have the same path.
    let place = parent.and_then(|parent| std::fs::metadata(parent).ok());
    let place = place.map_or_else(String::new, |of| format!(" at {}:{}", of.dev(), of.ino()));
    Some(format!("{key} {}{place}", path.display()))
}

/// What is said of a program of another instance.
fn told(one: &StalePins) -> String {
    let (path, whose) = (one.path().display(), whose(one));
    format!(
        "{whose} has left a program that forwards packets, and may start again: {path}; if it will not, `penstock ctl dsr detach {path}` as root ends the program"
    )
}

fn whose(one: &StalePins) -> String {
    match one.owner() {
        Some(owner) => format!("another penstock ({owner})"),
        None => "a penstock that does not say whose it is".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_known_by_its_state_directory_or_its_configuration_or_its_control_socket() {
        let path = |text: &'static str| Some(Path::new(text));
        let of = |state, file, socket| owner(state, file, socket).unwrap_or_default();
        let all = of(path("/state"), path("/file"), path("/socket"));
        assert_eq!(all, of(path("/state"), path("/other"), None));
        assert!(all.starts_with("state-directory /state at "), "{all}");
        let by_file = of(None, path("/file"), path("/socket"));
        assert!(by_file.starts_with("configuration /file at "), "{by_file}");
        assert_eq!(by_file, of(None, path("/../file"), None), "the same file");
        assert_ne!(by_file, of(None, path("/other"), None));
        assert!(of(None, None, path("/socket")).starts_with("control socket /socket at "));
        assert_eq!(owner(None, None, None), None);
        assert!(of(path("/nowhere/state"), None, None) == "state-directory /nowhere/state");
    }
}
