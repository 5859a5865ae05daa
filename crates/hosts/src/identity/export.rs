//! Export of identities as lines of `known_hosts`, for other programs.

use std::collections::HashMap;
use std::net::IpAddr;

use super::decide::Offered;
use super::host::HostFile;
use super::import::Called;
use super::index::{Found, Index};
use super::known_hosts::FIRST_USE;
use super::name::Name;
use super::proof::Root;
use crate::ssh::key::PublicKey;

/// Lines about host `name`. Each line starts with `pattern`, the text that OpenSSH compares, often an address. Empty
/// for an unknown, damaged or retired host.
#[must_use]
pub fn lines_about(index: &Index, name: &str, port: u16, pattern: &str) -> Vec<String> {
    let host = match index.find(name, port) {
        Found::Host(host) if host.retired().is_some() => return Vec::new(),
        Found::Host(host) => Some(host),
        Found::Unknown => None,
        Found::Damaged(_) | Found::Ambiguous(_) => return Vec::new(),
    };
    let Ok(bound) = index.bound(name, host) else { return Vec::new() };
    // OpenSSH with `StrictHostKeyChecking no` accepts a key that one line lists and another line revokes.
    let holds = |key: &PublicKey| !index.revokes(key, host);
    let pins = host.into_iter().flat_map(HostFile::pins).filter(|pin| holds(&pin.key));
    let pins = pins.map(|pin| format!("{pattern} {}", pin.key));
    let authorities = bound.iter().filter(|one| holds(one.key));
    let authorities = authorities.map(|one| format!("@cert-authority {pattern} {}", one.key));
    let revoked = index.revoked().filter(|key| !holds(key)).map(|key| format!("@revoked {pattern} {key}"));
    let mut lines: Vec<String> = pins.chain(authorities).collect();
    if !lines.is_empty() {
        let mut revoked: Vec<String> = revoked.collect();
        revoked.sort_unstable();
        lines.extend(revoked);
    }
    lines
}

/// Exports all hosts, authorities and revoked keys as one file. A comment marks keys that were only trusted on first
/// use, for a later import. `called` holds the `HostName` places of `ssh_config`, under which ssh looks a host up. An
/// address that is a hint of several hosts is omitted, with a comment: a client would accept the keys of all these
/// hosts at the address.
#[must_use]
pub fn export(index: &Index, called: &[Called]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let hosts = || index.hosts().iter().filter(|host| host.retired().is_none());
    let mut places: HashMap<(IpAddr, u16), Vec<&str>> = HashMap::new();
    for host in hosts() {
        for address in host.address().addresses {
            places.entry((address, host.port().unwrap_or(22))).or_default().push(host.name().as_str());
        }
    }
    for host in hosts() {
        let port = host.port().unwrap_or(22);
        let mut names: Vec<String> = Vec::new();
        let hints = host.address().addresses;
        // An alias that is an address is current only if a hint has the same address.
        let is_stale = |name: &&Name| {
            let address = name.split_port().0.parse::<IpAddr>();
            *name != host.name() && address.is_ok_and(|address| !hints.contains(&address))
        };
        let (shared, own): (Vec<IpAddr>, Vec<IpAddr>) =
            hints.iter().partition(|address| places[&(**address, port)].len() > 1);
        for address in shared {
            let all = places[&(address, port)].join(", ");
            lines.push(format!(
                "# {address} is not among the names of {}: it is a hint of {all}\n",
                host.name()
            ));
        }
        let names_of = host.names().filter(|name| !is_stale(name)).map(ToString::to_string);
        for name in names_of
            .chain(own.iter().map(ToString::to_string))
            .map(|name| if port == 22 || name.starts_with('[') { name } else { format!("[{name}]:{port}") })
        {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let places = called.iter().filter(|one| host.names().any(|name| *name == one.name));
        for place in places.map(|one| one.place.to_string()) {
            if !names.contains(&place) {
                names.push(place);
            }
        }
        let names = names.join(",");
        let holds = |key: &PublicKey| !index.revokes(key, Some(host));
        lines.extend(host.pins().filter(|pin| holds(&pin.key)).map(|pin| match pin.root() {
            Root::Proved => format!("{names} {}\n", pin.key),
            Root::FirstUse => format!("{names} {} {FIRST_USE}\n", pin.key),
        }));
        let bound = index.bound(host.name().as_str(), Some(host)).unwrap_or_default();
        for signer in bound.iter().filter(|signer| holds(signer.key)) {
            lines.push(format!("@cert-authority {names} {}\n", signer.key));
        }
    }
    for authority in index.authorities() {
        if let Some(names) = &authority.names {
            let keys = authority.keys.iter().filter(|key| !index.revokes(key, None));
            lines.extend(keys.map(|key| format!("@cert-authority {names} {key}\n")));
        }
    }
    let mut revoked: Vec<String> = index.revoked().map(|key| format!("@revoked * {key}\n")).collect();
    revoked.sort_unstable();
    lines.extend(revoked);
    lines.concat()
}

/// The one line with which OpenSSH accepts the offered key and nothing else. For a certificate the line has the key
/// inside: with the line of an authority OpenSSH would check the certificate by its own rules.
#[must_use]
pub fn line_of(offered: &Offered, pattern: &str) -> String {
    format!("{pattern} {}", offered.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";

    fn index() -> Index {
        let host = |name: &str, lines: &str| {
            HostFile::parse(&name.parse().unwrap(), &format!("id {name}\n{lines}")).unwrap()
        };
        let pin = format!("pin {KEY} from=console 2026-01-01\n");
        let hosts = vec![
            host("web1", &format!("alias www\naddr dns:web1.example.com 10.0.0.1\n{pin}")),
            host("nas", &format!("addr 10.0.0.2 port=2222\n{pin}")),
            host("gone", &format!("{pin}retired 2026-02-02\n")),
        ];
        Index::new(hosts, Vec::new(), Vec::new(), [])
    }

    #[test]
    fn lines_are_of_the_host_that_was_named_wherever_it_is_and_bear_the_pattern() {
        let lines = |name: &str, port| lines_about(&index(), name, port, "[10.9.9.9]:4");
        for (name, port) in [
            ("web1", 22),
            ("www", 22),
            ("web1.example.com", 22),
            ("10.0.0.1", 22),
            ("nas", 2222),
            ("web1", 2222),
        ] {
            assert_eq!(lines(name, port), [format!("[10.9.9.9]:4 {KEY}")], "{name}");
        }
        for name in ["gone", "missing", "10.0.0.9"] {
            assert_eq!(lines(name, 22), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn export_reads_back_as_known_hosts() {
        let called = Called { name: "www".parse().unwrap(), place: "[10.0.0.1]:2222".parse().unwrap() };
        assert!(export(&index(), &[called]).contains("10.0.0.1,[10.0.0.1]:2222 "), "where ssh_config has it");
        let text = export(&index(), &[]);
        assert_eq!(
            text,
            format!("web1,www,web1.example.com,10.0.0.1 {KEY}\n[nas]:2222,[10.0.0.2]:2222 {KEY}\n")
        );
        assert_eq!(super::super::KnownHosts::parse(&text).faults, []);
    }

    #[test]
    fn address_stands_behind_nobody_who_left_it_or_of_whom_only_one_can_be_there() {
        let host = |name: &str, lines: &str| {
            let pin = format!("pin {KEY} from=console 2026-01-01\n");
            HostFile::parse(&name.parse().unwrap(), &format!("id {name}\n{lines}{pin}")).unwrap()
        };
        let hosts = vec![
            host("web1", "alias [10.0.0.1]:2222 [10.0.0.7]:2222 www\naddr 10.0.0.7 port=2222\n"),
            host("db1", "addr 10.0.0.9\n"),
            host("db2", "addr 10.0.0.9 10.0.0.10\n"),
            host("db3", "addr 10.0.0.9 port=2222\n"),
        ];
        let text = export(&Index::new(hosts, Vec::new(), Vec::new(), []), &[]);
        assert_eq!(
            text,
            format!(
                "[web1]:2222,[10.0.0.7]:2222,[www]:2222 {KEY}\n\
                 # 10.0.0.9 is not among the names of db1: it is a hint of db1, db2\ndb1 {KEY}\n\
                 # 10.0.0.9 is not among the names of db2: it is a hint of db1, db2\ndb2,10.0.0.10 {KEY}\n\
                 [db3]:2222,[10.0.0.9]:2222 {KEY}\n"
            )
        );
        assert_eq!(super::super::KnownHosts::parse(&text).faults, []);
    }
}
