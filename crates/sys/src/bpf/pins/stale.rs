//! Programs of earlier processes whose listener or address is no longer configured. Without removal they would go on
//! forwarding packets to the backends that were configured then, ahead of the programs of this process.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use super::super::memory::Memory;
use super::super::{Hook, calls, clsact};
use super::{
    DIRECTORY, FILTER, FORM, LINKS, OWNER, Pins, QDISC, Unpinned, filter_name, names, network, path_of, safe,
    wrong,
};

/// A directory of this network namespace that no process has, with a program.
#[derive(Debug)]
pub struct StalePins {
    pins: Pins,
    owner: Option<String>,
}

impl StalePins {
    /// All of them but those with these names.
    pub fn all(names: &[String]) -> Result<Vec<Self>, Unpinned> {
        let number = network()?;
        let current = names
            .iter()
            .map(|name| Ok(path_of(name)?.file_name().unwrap_or_default().to_owned()))
            .collect::<Result<BTreeSet<OsString>, Unpinned>>()?;
        let mut stale = Vec::new();
        for name in directories()? {
            if current.contains(&name) || !name.to_str().is_some_and(|name| is_of(name, number)) {
                continue;
            }
            match Pins::lock(Path::new(DIRECTORY).join(name)) {
                Ok(pins) => {
                    let owner = pins.owner();
                    stale.push(Self { pins, owner });
                }
                Err(Unpinned::Taken(_)) => {}
                Err(Unpinned::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        stale.retain(Self::has_program);
        Ok(stale)
    }

    fn has_program(&self) -> bool {
        LINKS.iter().any(|link| self.pins.path(link).exists())
    }

    pub fn path(&self) -> &Path {
        &self.pins.path
    }

    /// Which instance of penstock has left it; `None`: one that did not say it.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The directory as a path that needs no right to those above it.
    pub fn directory(&self) -> PathBuf {
        self.pins.by_descriptor()
    }

    /// The link of its program on an interface, with its name.
    pub(in super::super) fn link(&self, hook: Hook, index: u32) -> Option<(PathBuf, OwnedFd)> {
        let path = self.pins.by_descriptor().join(hook.pin());
        let link = calls::get(&path).ok()?;
        calls::interface_of(link.as_fd()).is_ok_and(|found| found == index).then_some((path, link))
    }

    /// Whether its program is on an interface.
    pub fn is_on(&self, index: u32) -> bool {
        let mut links = [Hook::Tc, Hook::Xdp, Hook::XdpGeneric].into_iter();
        let has_filter = || matches!(clsact::find(index, &self.pins.filter_name()), Ok(Some(_)));
        links.any(|hook| self.link(hook, index).is_some()) || self.needs_rights() && has_filter()
    }

    /// The first words of the map `service`; `None`: it has another form, or cannot be read.
    pub fn service<const WORDS: usize>(&self) -> Option<[u64; WORDS]> {
        let name = self.path().file_name()?.to_str()?;
        if !name.starts_with(&format!("v{FORM}-")) {
            return None;
        }
        let map = calls::get(&self.pins.path("service")).ok()?;
        let memory = Memory::map(map.as_fd(), WORDS).ok()?;
        let mut words = memory.words().iter().map(|word| word.load(Relaxed));
        Some(std::array::from_fn(|_| words.next().unwrap_or_default()))
    }

    /// Whether its name is that of a service on an interface with this address and port; 0 is every port. This needs no right to
    /// bpf(2).
    pub fn is_named(&self, interface: &str, ip: IpAddr, port: u16) -> bool {
        let name = self.path().file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| is_named(name, interface, ip, port))
    }

    /// Whether removing the stale program needs CAP_NET_ADMIN: a filter of clsact does.
    pub fn needs_rights(&self) -> bool {
        self.pins.needs_rights()
    }

    /// Takes its program off the interface before the call returns, and then away as [`Self::remove`] does.
    pub fn end(&self) -> io::Result<()> {
        for link in LINKS.into_iter().filter(|link| *link != FILTER) {
            // One whose interface is gone is on none.
            let _ = calls::get(&self.pins.path(link)).and_then(|link| calls::detach(link.as_fd()));
        }
        self.remove()
    }

    /// Takes its program away, with all that it had, also of another form. It needs no right to the directories above.
    pub fn remove(&self) -> io::Result<()> {
        self.pins.remove()
    }
}

/// Removes the directories of services that have ended as another user than root, which could not do it. Another process
/// may hold an empty one that it has just made.
pub fn remove_empty() {
    for name in directories().unwrap_or_default() {
        let path = Path::new(DIRECTORY).join(name);
        if names(&path).is_ok_and(|names| names.is_empty())
            && let Ok(pins) = Pins::try_lock(path)
        {
            pins.remove_directory();
        }
    }
}

/// A program that has names: of a running process, or kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub path: PathBuf,
    /// Which instance of penstock has made it; `None`: it is not said.
    pub owner: Option<String>,
    pub number: u32,
}

/// Programs of this network namespace that have names, whether a process has them or not. Without the right to look there
/// are none.
pub fn named() -> Vec<Named> {
    let Ok(number) = network() else { return Vec::new() };
    let mut all = Vec::new();
    for name in directories().unwrap_or_default() {
        if !name.to_str().is_some_and(|name| is_of(name, number)) {
            continue;
        }
        let path = Path::new(DIRECTORY).join(name);
        let owner = fs::read_link(path.join(OWNER)).ok().map(|text| text.to_string_lossy().into_owned());
        for link in LINKS {
            let Ok(object) = calls::get(&path.join(link)) else { continue };
            let number = match link {
                FILTER => calls::number_of(object.as_fd()),
                _ => calls::program_number(object.as_fd()),
            };
            if let Ok(number) = number {
                all.push(Named { path: path.clone(), owner: owner.clone(), number });
            }
        }
    }
    all
}

impl Pins {
    /// Whether another service has a filter in the qdisc of an interface that was made for such filters.
    pub(in super::super) fn shares_made_qdisc(&self, index: u32) -> bool {
        let Ok(number) = network() else { return false };
        let others = directories().unwrap_or_default().into_iter().filter(|name| {
            name.to_str().is_some_and(|name| is_of(name, number)) && Some(&**name) != self.path.file_name()
        });
        let mut marked =
            others.filter(|name| fs::symlink_metadata(Path::new(DIRECTORY).join(name).join(QDISC)).is_ok());
        marked.any(|name| matches!(clsact::find(index, &filter_name(&name)), Ok(Some(_))))
    }
}

/// Whether this user may look for programs that have names.
pub fn look() -> io::Result<()> {
    match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Names of the directories of services.
fn directories() -> Result<Vec<OsString>, Unpinned> {
    let directory = Path::new(DIRECTORY);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        // Without the right to look, what there is cannot be taken away either.
        Err(error) if is_hidden(&error) => return Ok(Vec::new()),
        Err(error) => return Err(wrong(directory)(error)),
    };
    entries.map(|entry| Ok(entry.map_err(wrong(directory))?.file_name())).collect()
}

fn is_hidden(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// Whether a directory has a name of this network namespace, of any version of the layout: `v1-4026531840-eth0-...`.
fn is_of(name: &str, number: u64) -> bool {
    let mut parts = name.splitn(3, '-');
    let version = parts.next().and_then(|version| version.strip_prefix('v'));
    version.is_some_and(|version| version.parse::<u32>().is_ok())
        && parts.next().is_some_and(|found| found.parse() == Ok(number))
        && parts.next().is_some()
}

/// Whether a directory of any version has the name of a service: `v1-4026531840-eth0-web-192_0_2_10-80`.
fn is_named(name: &str, interface: &str, ip: IpAddr, port: u16) -> bool {
    let service =
        name.splitn(3, '-').nth(2).and_then(|rest| rest.strip_prefix(&format!("{}-", safe(interface))));
    let Some((rest, its)) = service.and_then(|rest| rest.rsplit_once('-')) else { return false };
    let its = its.parse::<u16>();
    rest.ends_with(&format!("-{}", safe(&ip.to_string())))
        && its.is_ok_and(|its| its == port || its == 0 || port == 0)
}

#[cfg(test)]
mod tests {
    use super::{is_named, is_of};

    #[test]
    fn a_service_is_known_by_the_name_of_its_directory() {
        let ip = |text: &str| text.parse().unwrap();
        for (name, interface, of, port, is_it) in [
            ("v1-9-eth0-web-192_0_2_10-80", "eth0", "192.0.2.10", 80, true),
            ("v2-9-eth0-a-b-192_0_2_10-0", "eth0", "192.0.2.10", 80, true),
            ("v2-9-eth0-web-192_0_2_10-80", "eth0", "192.0.2.10", 0, true),
            ("v2-9-eth0_5-web-2001_db8__10-443", "eth0.5", "2001:db8::10", 443, true),
            ("v2-9-eth0-web-192_0_2_10-80", "eth0", "192.0.2.10", 8080, false),
            ("v2-9-eth0-web-192_0_2_10-80", "eth1", "192.0.2.10", 80, false),
            ("v2-9-eth0-web-192_0_2_10-80", "eth0", "2.0.2.10", 80, false),
            ("v2-9-eth0", "eth0", "192.0.2.10", 80, false),
        ] {
            assert_eq!(is_named(name, interface, ip(of), port), is_it, "{name} {interface} {of} {port}");
        }
    }

    #[test]
    fn directories_of_other_networks_and_of_others_are_no_ones_to_remove() {
        for (name, is_ours) in [
            ("v1-4026531840-eth0-web-192_0_2_10-80", true),
            ("v9-4026531840-x", true),
            ("v1-4026531841-eth0-web-192_0_2_10-80", false),
            ("v1-4026531840", false),
            ("x1-4026531840-eth0", false),
            ("v-4026531840-eth0", false),
            ("", false),
        ] {
            assert_eq!(is_of(name, 4_026_531_840), is_ours, "{name}");
        }
    }
}
