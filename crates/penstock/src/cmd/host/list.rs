//! Tables of known hosts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hosts::identity::{Address, Found, Name};
use ssh::identity::{Pending, Store};
use text::{shell, table};

use super::known::{failure, known, load};
use crate::output::{Failure, plain, plain_lines, print};

pub(super) fn list(store: &Store) -> Result<(), Failure> {
    let listing = store.list().map_err(failure)?;
    let seen = store.seen();
    if listing.hosts.is_empty() && listing.damaged.is_empty() {
        return print("no hosts yet: penstock host import ~/.ssh/known_hosts, or penstock host add NAME\n");
    }
    let head = ["host", "keys", "proved by", "address", "last good"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for host in listing.hosts {
        let last = seen.get(&host.name);
        let hints = host.address;
        // Prefer the address of the last connection, unless it is no longer a hint because an operator moved the host.
        let seen_at = last.and_then(|last| last.address);
        let is_hint = |address: &IpAddr| hints == Address::default() || hints.addresses.contains(address);
        let address = seen_at.filter(is_hint).map(|address| address.to_string());
        let hint = || hints.addresses.last().map(ToString::to_string);
        let name = || hints.names.first().map(ToString::to_string);
        let seen_at = || seen_at.map(|address| address.to_string());
        let good = match host.retired {
            Some(date) => format!("retired {date}"),
            None => last.and_then(|last| last.date).map_or_else(String::new, |date| date.to_string()),
        };
        let address = address.or_else(hint).or_else(name).or_else(seen_at).unwrap_or_default();
        let columns = [host.name.to_string(), host.keys, host.proofs, address, good];
        rows.push(columns.map(|text| if text.is_empty() { "-".to_owned() } else { text }).to_vec());
    }
    // Faults are too long for a column.
    let mut faults = Vec::new();
    for (name, damage) in &listing.damaged {
        let fault = damage.faults.first().map(ToString::to_string).unwrap_or_default();
        rows.push(vec![name.to_string(), "DAMAGED".into()]);
        faults.push(format!("{name} is damaged: {}\n", plain(&fault)));
    }
    rows[1..].sort();
    faults.sort();
    print(&(table::of(&rows) + &faults.concat()))
}

pub(super) fn show(store: &Store, name: &Name) -> Result<(), Failure> {
    let index = load(store)?;
    if let Found::Damaged(damage) = index.find(name.as_str(), 22) {
        let faults: String =
            damage.faults.iter().map(|fault| format!("  {}\n", plain(&fault.to_string()))).collect();
        return Err(Failure::runtime(format!(
            "{} is damaged, and {name} is refused until it is repaired:\n{}",
            plain(&damage.path),
            faults.trim_end()
        )));
    }
    let host = known(&index, name)?;
    let mut text = format!("# {}\n{host}", store.path(host.name()).display());
    for (line, unknown) in host.unknown_lines() {
        let word = unknown.split_whitespace().next().unwrap_or_default();
        text.push_str(&format!("# line {line} begins with \"{word}\", which is unknown\n"));
    }
    print(&plain_lines(&text))
}

pub(super) fn pending(store: &Store) -> Result<(), Failure> {
    let index = load(store)?;
    let is_known = |one: &Pending| match index.find(&one.name, one.port) {
        Found::Host(host) => host.pin(&one.key).is_some() || host.signers().next().is_some(),
        _ => false,
    };
    let (known, queue): (Vec<Pending>, Vec<Pending>) = store.pending().into_iter().partition(is_known);
    for one in known.iter().filter(|one| queue.iter().all(|left| left.name != one.name)) {
        store.forget_pending(&one.name).map_err(failure)?;
    }
    if queue.is_empty() {
        return print("no host waits for enrolment\n");
    }
    let mut rows = vec![["host", "port", "address", "last asked", "showed"].map(str::to_owned).to_vec()];
    for one in &queue {
        let address = one.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
        let key = format!("{} {}", one.key.algorithm(), one.key.fingerprint());
        rows.push(vec![one.name.clone(), one.port.to_string(), address, one.date.to_string(), key]);
    }
    let hosts: BTreeSet<(&str, u16)> = queue.iter().map(|one| (one.name.as_str(), one.port)).collect();
    let (name, port) = match hosts.first() {
        Some(&(name, port)) if hosts.len() == 1 => {
            let has_own = name.starts_with('[');
            (shell::word(name), if port == 22 || has_own { String::new() } else { format!(" --port {port}") })
        }
        _ if queue.iter().any(|one| one.port != 22) => ("NAME".to_owned(), " --port PORT".to_owned()),
        _ => ("NAME".to_owned(), String::new()),
    };
    let advice = format!(
        "\nThese keys prove nothing. Read the fingerprint on the console of the host, then:\n  \
         penstock host add {name}{port} --fingerprint SHA256:...\n"
    );
    print(&(table::of(&rows) + &advice))
}
