//! What a set-up has changed on this machine, and what takes exactly that back.

use std::net::IpAddr;

use super::persist::File;
use super::settings::Set;
use super::tunnel::device;
use super::{Address, Facts, Key, LOOPBACK};

/// What the set-up of one address has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub ip: IpAddr,
    pub address: Before,
    pub settings: Vec<Changed>,
    pub files: Vec<File>,
    pub tunnel: Tunnel,
}

/// What the set-up has changed for a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// It has made the table of rules.
    pub has_table: bool,
    /// It has set the device up.
    pub has_device: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The loopback interface had the address.
    Present,
    Absent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub set: Set,
    /// The value before.
    pub from: u32,
}

impl Record {
    pub fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            address: Before::Present,
            settings: Vec::new(),
            files: Vec::new(),
            tunnel: Tunnel::default(),
        }
    }

    /// Notes a change of a setting. What was there before the first change counts.
    pub fn note(&mut self, changed: Changed) {
        match self.settings.iter_mut().find(|one| is_same(&one.set, &changed.set)) {
            Some(known) => known.set.to = changed.set.to,
            None => self.settings.push(changed),
        }
    }

    /// Notes a file with its new content.
    pub fn note_file(&mut self, file: File) {
        self.files.retain(|one| one.path != file.path);
        self.files.push(file);
    }
}

/// Another address of the loopback interface that a service may have, without a record.
fn other_vip(ip: IpAddr, facts: &Facts) -> Option<IpAddr> {
    let is_vip = |one: &&Address| {
        one.interface == LOOPBACK
            && one.prefix == 32
            && one.ip != ip
            && one.ip.is_ipv4()
            && !one.ip.is_loopback()
    };
    facts.addresses.iter().find(is_vip).map(|one| one.ip)
}

fn is_same(one: &Set, other: &Set) -> bool {
    (&one.conf, one.key) == (&other.conf, other.key)
}

/// What takes a record back, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undo {
    /// Whether the loopback interface loses the address.
    pub address: Option<IpAddr>,
    pub settings: Vec<Set>,
    /// Files to be removed, if they are as they were written.
    pub files: Vec<File>,
    /// The table of rules for this address is deleted.
    pub table: Option<IpAddr>,
    /// This tunnel device is set down.
    pub device: Option<&'static str>,
    /// What stays, and why.
    pub stays: Vec<String>,
    /// Settings that another address needs: its record, by its place, takes them over.
    pub handed_over: Option<(usize, Vec<Changed>)>,
}

/// `others` are the records of the other addresses of this machine.
pub fn undo(record: &Record, others: &[Record], facts: &Facts) -> Undo {
    let ip = record.ip;
    let mut undo = Undo::default();
    match record.address {
        Before::Absent if facts.has(ip) => undo.address = Some(ip),
        Before::Absent => {}
        Before::Present => undo.stays.push(format!("{ip} was on lo before the set-up")),
    }
    let heir = others.iter().position(|other| other.ip.is_ipv4()).filter(|_| !record.settings.is_empty());
    if let Some(heir) = heir {
        let other = &others[heir];
        let names: Vec<_> = record.settings.iter().map(|changed| changed.set.assignment()).collect();
        undo.stays.push(format!("{}: {} needs it", names.join(", "), other.ip));
        let unknown = |changed: &&Changed| !other.settings.iter().any(|one| is_same(&one.set, &changed.set));
        undo.handed_over = Some((heir, record.settings.iter().filter(unknown).cloned().collect()));
    } else if let Some(other) = other_vip(ip, facts).filter(|_| !record.settings.is_empty()) {
        let names: Vec<_> = record.settings.iter().map(|changed| changed.set.assignment()).collect();
        undo.stays.push(format!("{}: {other} on {LOOPBACK} needs it", names.join(", ")));
    } else {
        for Changed { set, from } in record.settings.iter().rev() {
            match facts.settings.get(&(set.conf.clone(), set.key)) {
                Some(now) if *now == set.to => undo.settings.push(Set { to: *from, ..set.clone() }),
                // The interface is gone, and its settings with it.
                None => {}
                Some(now) => undo.stays.push(format!("{} was changed since, to {now}", set.assignment())),
            }
        }
    }
    undo.table = record.tunnel.has_table.then_some(ip);
    if record.tunnel.has_device {
        let needs = |other: &&Record| other.ip.is_ipv4() == ip.is_ipv4() && other.tunnel.has_table;
        match others.iter().find(needs) {
            Some(other) => undo.stays.push(format!("{}: {} needs it", device(ip), other.ip)),
            None => undo.device = Some(device(ip)),
        }
    }
    let is_shared =
        |file: &&File| others.iter().flat_map(|other| &other.files).any(|one| one.path == file.path);
    undo.files = record.files.iter().rev().filter(|file| !is_shared(file)).cloned().collect();
    undo
}

/// Whether a name of a record is one of an interface: nothing else may become a part of a path.
pub fn is_conf(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    (1..=15).contains(&name.len()) && name.bytes().all(is_letter) && name != "." && name != ".."
}

/// Reads the words of a record.
pub fn changed(conf: &str, key: &str, from: u32, to: u32) -> Option<Changed> {
    let key: Key = key.parse().ok()?;
    is_conf(conf).then(|| Changed { set: Set { conf: conf.to_owned(), key, to }, from })
}
