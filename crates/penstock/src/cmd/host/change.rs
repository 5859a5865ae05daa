//! Small changes of identities: names, addresses, and retired or revoked keys.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use clap::Args;
use hosts::identity::{AddressOrName, FingerprintRecord, Found, HostFile, Location, Name, Pin, Root};
use hosts::ssh::config::Asked;
use hosts::ssh::key::PublicKey;
use ssh::identity::{IdentityError, Store, check_free, enrol, now};
use ssh::{ConfigFiles, LocationSources, SshConfig};

use super::known::{failure, known, load, said};
use super::place::one_port;
use crate::output::{Failure, plain_lines, print};

#[derive(Debug, Args)]
pub(super) struct Named {
    /// The host
    pub name: Name,
}

/// Two names.
#[derive(Debug, Args)]
pub(super) struct Pair {
    /// The host
    name: Name,
    /// The other name
    other: Name,
}

/// Take a host, or one of its keys, out of service
///
/// A retired host is refused, and its keys stay known as its own: a host that shows them is reported.
#[derive(Debug, Args)]
pub(super) struct Retire {
    /// The host
    name: Name,
    /// Only this key: its fingerprint, or the last 16 or more characters of it
    #[arg(long, value_name = "FINGERPRINT", conflicts_with = "undo")]
    key: Option<String>,
    /// Put the host in service again
    #[arg(long)]
    undo: bool,
}

/// Refuse a key for ever, from every host
#[derive(Debug, Args)]
pub(super) struct Revoke {
    /// The host whose key it was
    name: Name,
    /// Fingerprint of the key, or the last 16 or more characters of it
    #[arg(value_name = "FINGERPRINT")]
    key: String,
}

/// Say where a host is now
///
/// Only a hint changes: the host still has to show a key of its own there.
#[derive(Debug, Args)]
pub(super) struct Move {
    /// The host
    name: Name,
    /// New address of the host, or a name in the DNS; with :PORT behind it ([...]:PORT for IPv6) also its port
    #[arg(value_name = "ADDRESS")]
    location: Location,
    /// New port of the host
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
}

pub(super) fn remove(store: &Store, name: &Name) -> Result<(), Failure> {
    let index = store.load().ok();
    let host = index.as_ref().and_then(|index| match index.find(name.as_str(), 22) {
        Found::Host(host) => Some(host.clone()),
        _ => None,
    });
    store.remove(name).map_err(failure)?;
    let left = host.as_ref().map(left_in_dns).unwrap_or_default();
    print(&plain_lines(&format!("{name} is forgotten\n{left}")))
}

pub(super) fn retire(store: &Store, arguments: &Retire) -> Result<(), Failure> {
    let index = load(store)?;
    let host = known(&index, &arguments.name)?;
    let name = host.name().clone();
    let today = now().date();
    if let Some(end) = &arguments.key {
        let key = key_of(host, end)?;
        let change = edit(store, &name, |host| host.retire_key(&key, today))?;
        let mut text = said(change, &format!("{name} no longer has {}", key.fingerprint()));
        let has_record = |pin: &Pin| {
            host.retired().is_none()
                && pin.absent.is_none()
                && pin.root() == Root::Proved
                && FingerprintRecord::of(&pin.key).is_some()
                && !index.revokes(&pin.key, Some(host))
        };
        if FingerprintRecord::of(&key).is_some() {
            // Without another key nothing is wanted at the names, and a push of the host does not touch them.
            let others = host.pins().any(|pin| pin.key != key && has_record(pin));
            text += &if others { record_of_key(host) } else { left_in_dns(host) };
        }
        return print(&plain_lines(&text));
    }
    if arguments.undo {
        let change = edit(store, &name, HostFile::revive)?;
        return print(&said(change, &format!("{name} is in service again")));
    }
    let change = edit(store, &name, |host| host.retire(today))?;
    let text = said(change, &format!("{name} is retired")) + &left_in_dns(host);
    print(&plain_lines(&text))
}

pub(super) fn revoke(store: &Store, arguments: &Revoke) -> Result<(), Failure> {
    let index = load(store)?;
    let host = known(&index, &arguments.name)?;
    let key = key_of(host, &arguments.key)?;
    let today = now().date();
    let name = host.name().clone();
    // Update the revocation list first: it applies to all hosts, even if the host's file cannot be changed.
    store.revoke(std::slice::from_ref(&key), today).map_err(failure)?;
    let change = edit(store, &name, |host| host.revoke(&key, today))?;
    let mut text =
        said(change, &format!("{} is revoked: every host that shows it is refused", key.fingerprint()));
    if FingerprintRecord::of(&key).is_some() {
        text += &record_of_key(host);
    }
    print(&plain_lines(&text))
}

/// Says how the records of a host that is gone leave the DNS, a line for each of its names.
fn left_in_dns(host: &HostFile) -> String {
    if !keys(host).any(|key| FingerprintRecord::of(key).is_some()) {
        return String::new();
    }
    let line = |name: &String| {
        format!(
            "  {name} may have SSHFP records in the DNS, which ssh believes: penstock dns push --without {name}{} --server ADDRESS --tsig FILE\n",
            zone(name)
        )
    };
    dns_names(host).iter().map(line).collect()
}

/// Says how the record of a key that a host has no longer leaves the DNS.
fn record_of_key(host: &HostFile) -> String {
    let names = dns_names(host);
    let Some(first) = names.first() else { return String::new() };
    format!(
        "  an SSHFP record of it may be in the DNS, which ssh believes: penstock dns push --host {}{} --server ADDRESS --tsig FILE\n",
        host.name(),
        zone(first)
    )
}

/// Names of which a host may have records in the DNS.
fn dns_names(host: &HostFile) -> Vec<String> {
    let hints = host.address().names;
    let names = if hints.is_empty() { vec![host.name().clone()] } else { hints };
    let names = names.iter().map(|name| name.split_port().0);
    names.filter(|name| name.parse::<IpAddr>().is_err()).map(str::to_owned).collect()
}

/// What a command about records needs beside a name without a dot.
fn zone(name: &str) -> &'static str {
    if name.contains('.') { "" } else { " --zone ZONE" }
}

/// Keys that a host has or had.
fn keys(host: &HostFile) -> impl Iterator<Item = &PublicKey> {
    let former = host.retired_keys().map(|(key, _)| key);
    host.pins().map(|pin| &pin.key).chain(former).chain(host.revoked())
}

pub(super) fn relocate(store: &Store, arguments: &Move) -> Result<(), Failure> {
    let index = load(store)?;
    let host = known(&index, &arguments.name)?;
    let name = host.name().clone();
    let port = one_port(&arguments.location, arguments.port)?;
    let to = Location { port, ..arguments.location.clone() };
    let change = edit(store, &name, |host| {
        let before = host.address();
        // The new location replaces all other hints of the same kind.
        for old in before.names.iter().filter(|old| to.place != AddressOrName::Dns((*old).clone())) {
            host.drop_dns(old);
        }
        let is_elsewhere = |old: &&IpAddr| match to.place {
            AddressOrName::Address(to) => old.is_ipv4() == to.is_ipv4() && **old != to,
            AddressOrName::Dns(_) => true,
        };
        for old in before.addresses.iter().filter(is_elsewhere) {
            host.drop_address(*old);
        }
        match &to.place {
            AddressOrName::Address(address) => host.add_address(*address),
            AddressOrName::Dns(dns) => host.add_dns(dns.clone()),
        }
        if let Some(port) = port {
            host.set_port(port);
        }
    })?;
    let mut text = said(change, &format!("the address of {name} is now {to}"));
    for elsewhere in said_elsewhere(&name, &to) {
        text.push_str(&format!("  but {elsewhere}\n"));
    }
    print(&plain_lines(&text))
}

/// Lists other sources of the host's address that have priority over the hint.
fn said_elsewhere(name: &Name, to: &Location) -> Vec<String> {
    let asked = Asked { host: name.split_port().0.to_owned(), ..Asked::default() };
    let Ok(config) = SshConfig::read(&ConfigFiles::Usual) else { return Vec::new() };
    let Ok(resolved) = config.resolve(&asked) else { return Vec::new() };
    let said = LocationSources::of(&resolved, &config.local().home);
    let line = |line: &String| format!("{line}: change it there: it decides for ssh and penstock");
    let agrees = resolved.host.eq_ignore_ascii_case(&to.place.to_string());
    let other_place = said.host.as_ref().filter(|_| !agrees);
    let other_port = said.port.as_ref().filter(|_| to.port.is_some_and(|port| port != resolved.port));
    let mut all: Vec<String> = [other_place, other_port].into_iter().flatten().map(line).collect();
    if said.host.is_none() {
        all.extend(said_by_dns(&resolved.host, to));
    }
    all
}

fn said_by_dns(host: &str, to: &Location) -> Option<String> {
    let (tell, told) = std::sync::mpsc::channel();
    let asked = host.to_owned();
    let look_up = move || {
        let found = (asked.as_str(), 22).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let _ = tell.send(found.unwrap_or_default());
    };
    std::thread::Builder::new().spawn(look_up).ok()?;
    let found = told.recv_timeout(LOOKUP).ok()?;
    let first = found.first()?.ip();
    let agrees = match &to.place {
        AddressOrName::Address(address) => found.iter().any(|found| found.ip() == *address),
        // The DNS name in the hint is resolved instead of the host's own name.
        AddressOrName::Dns(_) => true,
    };
    (!agrees).then(|| {
        format!("the DNS (or /etc/hosts) says that {host} is {first}: change it there, or set HostName in ~/.ssh/config")
    })
}

/// Time limit of the DNS look-up for the warning.
const LOOKUP: Duration = Duration::from_secs(2);

pub(super) fn alias(store: &Store, pair: &Pair) -> Result<(), Failure> {
    let index = load(store)?;
    let name = known(&index, &pair.name)?.name().clone();
    let change = store.change_among(&name, |index, host| {
        let mut host = host.ok_or_else(|| IdentityError::Unknown(name.to_string()))?;
        check_free(index, &pair.other, &name)?;
        match pair.other.address() {
            Some(address) => host.add_address(address),
            None => host.add_alias(pair.other.clone()),
        }
        Ok(host)
    });
    let change = change.map_err(failure)?;
    print(&said(change, &format!("{} is {name}", pair.other)))
}

pub(super) fn rename(store: &Store, pair: &Pair) -> Result<(), Failure> {
    store.rename(&pair.name, &pair.other).map_err(failure)?;
    print(&format!("{} is called {} now; the old name is an alias\n", pair.name, pair.other))
}

fn edit(
    store: &Store,
    name: &Name,
    edit: impl FnOnce(&mut HostFile),
) -> Result<ssh::identity::Change, Failure> {
    let change = store.change(name, |host| {
        let mut host = host.ok_or_else(|| IdentityError::Unknown(name.to_string()))?;
        edit(&mut host);
        Ok(host)
    });
    change.map_err(failure)
}

/// Finds the only key of a host whose fingerprint ends with `end`.
fn key_of(host: &HostFile, end: &str) -> Result<PublicKey, Failure> {
    let claim = enrol::Claim::fingerprint(end).map_err(failure)?;
    let keys = host.pins().map(|pin| &pin.key).chain(host.retired_keys().map(|(key, _)| key));
    let keys: Vec<&PublicKey> = keys.collect();
    if let Some(found) = keys.iter().find(|key| claim.speaks_for(key)) {
        return Ok((*found).clone());
    }
    let begun = end.trim().trim_start_matches("SHA256:").trim_end_matches('=');
    let within = keys.iter().any(|key| key.fingerprint().to_string().contains(begun));
    let why = match within {
        true => {
            format!("the fingerprint of a key of {} has {begun} in it, but does not end in it", host.name())
        }
        false => format!("{} has no key whose fingerprint ends in {begun}", host.name()),
    };
    Err(Failure::runtime(format!(
        "{why}\n  hint: penstock host show {} shows them; give a whole one, or at least its last {} characters",
        host.name(),
        enrol::FEWEST_CHARACTERS
    )))
}
