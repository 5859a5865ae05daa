//! The records that this machine should have in the DNS: of hosts, certificates and OpenPGP keys.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use access::keys::openpgp::{self, Address, KeyFault};
use access::keys::{Association, Kind, Owner, Record, Revoked, Set, sets};
use clap::{Args, ValueEnum};
use config::types::{BindAddress, Listener};
use hosts::identity::{FingerprintRecord, Found, HostFile, Index, Name, Root};
use hosts::ssh::key::PublicKey;
use ssh::identity::{Places, Store};
use sys::file;
use tls::Bundle;
use zeroize::Zeroizing;

use crate::load;
use crate::output::{Failure, complain, plain};

/// Whose records.
#[derive(Debug, Args)]
pub(super) struct WantedArguments {
    /// SSHFP records of all hosts with pinned keys (penstock host list)
    #[arg(long)]
    hosts: bool,
    /// SSHFP records of this host
    #[arg(long = "host", value_name = "NAME")]
    host: Vec<Name>,
    /// TLSA records of the certificates that this configuration serves
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// TLSA records of this certificate too, which is not served yet (PEM, with its chain)
    #[arg(long = "next", value_name = "FILE")]
    next: Vec<PathBuf>,
    #[command(flatten)]
    tlsa: NextArguments,
    /// OPENPGPKEY records of the OpenPGP key in this file (gpg --export)
    #[arg(long, value_name = "FILE")]
    openpgp: Vec<PathBuf>,
    /// Only for this mail address of the OpenPGP keys
    #[arg(long = "address", value_name = "MAIL", requires = "openpgp")]
    addresses: Vec<String>,
    /// CERT records of type PGP too, for the OpenPGP keys
    #[arg(long, requires = "openpgp")]
    cert: bool,
    /// CERT records of type IPGP: the fingerprint, and the URL of the key
    #[arg(long, value_name = "URL", requires = "openpgp")]
    ipgp: Option<String>,
    /// Only names in this zone; names without a dot are below it
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
}

/// For which names and ports a certificate has TLSA records, and which.
#[derive(Debug, Args)]
pub(super) struct NextArguments {
    /// What TLSA records name: the key of the server (3 1 1), that of its authority (2 1 1), or both
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Names::Server)]
    tlsa: Names,
    /// Ports of TLSA records [default: those of the listeners, else 443]
    #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,
    /// Hosts of a certificate for a wildcard
    #[arg(long = "name", value_name = "HOST")]
    names: Vec<String>,
}

/// What TLSA records name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Names {
    Server,
    Authority,
    Both,
}

impl Names {
    fn associations(self) -> &'static [Association] {
        match self {
            Self::Server => &[Association::Server],
            Self::Authority => &[Association::Authority],
            Self::Both => &[Association::Server, Association::Authority],
        }
    }
}

/// A record, and what it is of.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) record: Record,
    pub(super) of: String,
    /// Name of the host that an SSHFP record is of, and the port of its hint.
    pub(super) host: Option<(Name, Option<u16>)>,
}

/// The records of keys, and those that must not be in the DNS.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) wanted: Vec<Wanted>,
    pub(super) revoked: Revoked,
    /// Why a key that is named has no records, and may have some in the DNS that must go.
    pub(super) without: Vec<String>,
}

impl Keys {
    /// What is wanted at each name and type; nothing, where records of revoked keys may be.
    pub(super) fn sets(&self) -> BTreeMap<(Owner, Kind), Set> {
        let mut sets = sets(self.wanted.iter().map(|one| &one.record));
        for place in self.revoked.places() {
            sets.entry(place.clone()).or_default();
        }
        sets
    }
}

/// Port of TLSA records, where nothing names another one.
pub(super) const HTTPS: u16 = 443;

/// Limit of a file with a key or certificate in bytes.
const LARGEST: u64 = 1024 * 1024;

/// Names and chain of a certificate, and the ports where it is served.
struct Served {
    names: Vec<String>,
    chain: Vec<Vec<u8>>,
    ports: Vec<u16>,
    of: String,
}

impl WantedArguments {
    /// The zone that `--zone` names.
    pub(super) fn zone(&self) -> Result<Option<Owner>, Failure> {
        let zone = self.zone.as_deref().map(Owner::parse).transpose();
        zone.map_err(|fault| Failure::usage(format!("--zone: {fault}")))
    }

    /// All records, sorted, each once. What cannot have one is told on standard error.
    pub(super) fn read(&self) -> Result<Keys, Failure> {
        self.with(Keys::default())
    }

    /// The same, beside what is known of `keys`.
    pub(super) fn with(&self, mut keys: Keys) -> Result<Keys, Failure> {
        let has_source = self.hosts || !self.host.is_empty() || self.config.is_some();
        let asks = has_source || !self.next.is_empty() || !self.openpgp.is_empty();
        if !asks && keys.revoked.places().next().is_none() {
            return Err(Failure::usage(
                "no keys are named\n  hint: --hosts or --host NAME for SSHFP, --config FILE for TLSA, --openpgp FILE for OPENPGPKEY",
            ));
        }
        let zone = self.zone()?;
        self.of_hosts(zone.as_ref(), &mut keys)?;
        self.of_certificates(zone.as_ref(), &mut keys.wanted)?;
        self.of_openpgp(zone.as_ref(), &mut keys)?;
        let mut outside = None;
        if let Some(zone) = &zone {
            outside =
                keys.wanted.iter().map(|one| &one.record.owner).find(|owner| !owner.is_in(zone)).cloned();
            keys.wanted.retain(|one| one.record.owner.is_in(zone));
            keys.revoked.only_in(zone);
        }
        keys.wanted.sort_by(|one, other| one.record.cmp(&other.record));
        keys.wanted.dedup_by(|one, other| one.record == other.record);
        if keys.wanted.is_empty() && keys.revoked.places().next().is_none() {
            return Err(Failure::runtime(match (zone, outside) {
                (Some(zone), Some(name)) => format!(
                    "there are no records: --zone {zone} leaves out all names, such as {name}\n  hint: name the zone that they are in"
                ),
                _ => "there are no records: no key of those named can have one".to_owned(),
            }));
        }
        Ok(keys)
    }

    fn of_hosts(&self, zone: Option<&Owner>, keys: &mut Keys) -> Result<(), Failure> {
        if !self.hosts && self.host.is_empty() && !keys.revoked.has_gone() {
            return Ok(());
        }
        let store = Store::new(Places::of_user().map_err(Failure::runtime)?);
        let index = store.load().map_err(Failure::runtime)?;
        refuse_present(&index, zone, &keys.revoked)?;
        for record in index.revoked().flat_map(FingerprintRecord::believed) {
            keys.revoked.add_sshfp(record.algorithm, record.hash, &record.fingerprint);
        }
        if self.hosts {
            for name in index.damaged().keys() {
                complain(&format!(
                    "note: {name}: its file is damaged, so it is left out: penstock host why {name}\n"
                ));
            }
            for host in index.hosts() {
                let found = match host.retired() {
                    None => sshfp((host, &index), zone, keys),
                    // Its keys have no records, and those of revoked ones have to go.
                    Some(_) => owners(host, zone).map(|owners| forbid((host, &index), &owners, keys)),
                };
                if let (Err(why), None) = (found, host.retired()) {
                    complain(&format!("note: {}\n", plain(&why)));
                }
            }
        }
        for name in &self.host {
            let Found::Host(host) = index.find(name.as_str(), 22) else {
                return Err(Failure::runtime(format!(
                    "{name} has no identity here, or a damaged one\n  hint: penstock host why {name}"
                )));
            };
            let places = keys.revoked.places().count();
            let found = match host.retired() {
                None => sshfp((host, &index), zone, keys),
                Some(since) => {
                    forbid((host, &index), &owners(host, zone).map_err(Failure::runtime)?, keys);
                    Err(format!(
                        "{}: it is retired since {since}, so it gets no record; penstock dns push --without takes those out that it has",
                        host.name()
                    ))
                }
            };
            if let (Some(zone), Ok(owners)) = (zone, owners(host, zone))
                && !owners.iter().any(|owner| owner.is_in(zone))
            {
                complain(&format!(
                    "note: {name}: it is not in the zone {zone} (--zone), which leaves it out\n"
                ));
            }
            match found {
                Err(why) if keys.revoked.places().count() == places => return Err(Failure::runtime(why)),
                Err(why) => keys.without.push(why),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn of_certificates(&self, zone: Option<&Owner>, wanted: &mut Vec<Wanted>) -> Result<(), Failure> {
        let mut served = Vec::new();
        let mut all_ports: Vec<u16> = Vec::new();
        if let Some(path) = &self.config {
            let loaded = load::file(path, &load::environment())?;
            for listener in &loaded.config.listeners {
                let Some(tls) = &listener.tls else { continue };
                let ports = ports(listener);
                all_ports.extend(&ports);
                let of = format!("listener {}", listener.name);
                let chains = tls::chains(tls);
                if chains.is_empty() {
                    complain(&format!("note: {of}: no certificate can be read: `penstock check` says why\n"));
                }
                served.extend(chains.into_iter().map(|(names, chain)| Served {
                    names,
                    chain,
                    ports: ports.clone(),
                    of: of.clone(),
                }));
            }
        }
        all_ports.sort_unstable();
        all_ports.dedup();
        for path in &self.next {
            let text = read(path)?;
            let (names, chain) = Bundle::chain(&text).map_err(|why| at(path, why))?;
            served.push(Served { names, chain, ports: all_ports.clone(), of: path.display().to_string() });
        }
        for one in &served {
            for record in self.tlsa.of(one, zone)? {
                wanted.push(Wanted { record, of: one.of.clone(), host: None });
            }
        }
        Ok(())
    }

    fn of_openpgp(&self, zone: Option<&Owner>, found: &mut Keys) -> Result<(), Failure> {
        let only: Vec<Address> = self
            .addresses
            .iter()
            .map(|text| Address::parse(text))
            .collect::<Result<_, _>>()
            .map_err(Failure::usage)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut unused = only.clone();
        for path in &self.openpgp {
            let keys = openpgp::read(&read(path)?).map_err(|why| at(path, why))?;
            for key in &keys {
                let own = key.addresses();
                let chosen: Vec<&Address> = match &only[..] {
                    [] => own.iter().filter(|own| zone.is_none_or(|zone| own.domain.is_in(zone))).collect(),
                    only if keys.len() == 1 => only.iter().collect(),
                    only => only.iter().filter(|address| own.iter().any(|own| own == *address)).collect(),
                };
                if chosen.is_empty() && only.is_empty() {
                    let has: Vec<String> = own.iter().map(|own| plain(&own.to_string())).collect();
                    let has = if has.is_empty() { "no mail address".to_owned() } else { has.join(", ") };
                    complain(&format!(
                        "note: {}: the key has {has}: no record\n",
                        plain(&path.display().to_string())
                    ));
                }
                for address in chosen {
                    unused.retain(|unused| unused != address);
                    self.of_key(path, key, address, now, found)?;
                }
            }
        }
        match unused.first() {
            None => Ok(()),
            Some(address) => Err(Failure::runtime(format!("no key in the files has the address {address}"))),
        }
    }

    fn of_key(
        &self,
        path: &Path,
        key: &openpgp::Key,
        address: &Address,
        now: u64,
        found: &mut Keys,
    ) -> Result<(), Failure> {
        let minimal = match key.minimal(address, now) {
            Ok(minimal) => minimal,
            Err(why @ (KeyFault::Revoked(_) | KeyFault::RevokedAddress(_))) => {
                found.without.push(at(path, why).to_string());
                return forbid_key(path, key, address, &mut found.revoked);
            }
            Err(why) => return Err(at(path, why)),
        };
        let mut records = Vec::new();
        for owner in address.openpgpkey_owners().map_err(|why| at(path, why))? {
            records.push(Record::openpgpkey(owner, &minimal).map_err(|why| at(path, why))?);
        }
        let owner = || address.cert_owner().map_err(|why| at(path, why));
        if self.cert {
            records.push(Record::cert_pgp(owner()?, &minimal).map_err(|why| at(path, why))?);
        }
        if let Some(url) = &self.ipgp {
            records.push(Record::cert_ipgp(owner()?, key.fingerprint(), url).map_err(|why| at(path, why))?);
        }
        let of = || address.to_string();
        found.wanted.extend(records.into_iter().map(|record| Wanted { record, of: of(), host: None }));
        Ok(())
    }
}

impl NextArguments {
    /// Whether ports of the records are named.
    pub(super) fn has_port(&self) -> bool {
        !self.ports.is_empty()
    }

    /// The records of a certificate in a file.
    pub(super) fn records(&self, path: &Path, text: &[u8]) -> Result<Vec<Record>, Failure> {
        let (names, chain) = Bundle::chain(text).map_err(|why| at(path, why))?;
        let records =
            self.of(&Served { names, chain, ports: Vec::new(), of: path.display().to_string() }, None)?;
        match records.is_empty() {
            true => Err(at(path, "it has no name that could have a TLSA record")),
            false => Ok(records),
        }
    }

    fn of(&self, one: &Served, zone: Option<&Owner>) -> Result<Vec<Record>, Failure> {
        let ports = match (&self.ports[..], &one.ports[..]) {
            ([], []) => &[HTTPS],
            ([], own) => own,
            (named, _) => named,
        };
        let mut records = Vec::new();
        for host in self.hosts_of(&one.names, &one.of) {
            let Ok(host) = Owner::within(&host, zone) else {
                complain(&format!("note: {}: {} is not a name in the DNS\n", plain(&one.of), plain(&host)));
                continue;
            };
            for port in ports {
                let owner = Owner::of_service(*port, &host).map_err(Failure::runtime)?;
                for association in self.tlsa.associations() {
                    let record = association.record(owner.clone(), &one.chain);
                    let record =
                        record.map_err(|why| Failure::runtime(format!("{}: {why}", plain(&one.of))))?;
                    records.push(record);
                }
            }
        }
        Ok(records)
    }

    /// Hosts for which a certificate is shown. TLSA records have no wildcard inside of a name.
    fn hosts_of(&self, names: &[String], of: &str) -> Vec<String> {
        let mut hosts = Vec::new();
        for name in names {
            match name.strip_prefix("*.") {
                None => hosts.push(name.clone()),
                Some(parent) => {
                    let below = |host: &&String| {
                        host.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent))
                    };
                    let named: Vec<String> = self.names.iter().filter(below).cloned().collect();
                    if named.is_empty() {
                        complain(&format!(
                            "note: {}: {} stands for many hosts: --name HOST names each that needs a record\n",
                            plain(of),
                            plain(name)
                        ));
                    }
                    hosts.extend(named);
                }
            }
        }
        hosts
    }
}

/// Keys of a host of which there are records: those that it announces and that are proved.
fn proved<'i>(host: &'i HostFile, index: &Index) -> Result<Vec<&'i PublicKey>, String> {
    let pins: Vec<_> =
        host.pins().filter(|pin| pin.absent.is_none() && !index.revokes(&pin.key, Some(host))).collect();
    let proved = pins.iter().filter(|pin| pin.root() == Root::Proved).map(|pin| &pin.key);
    let proved: Vec<_> = proved.filter(|key| FingerprintRecord::of(key).is_some()).collect();
    if proved.is_empty() {
        let why = match pins.is_empty() {
            true => "it has no pinned key",
            false => {
                "no key of it is proved, and a record would make others believe it: penstock host add with a proof"
            }
        };
        return Err(format!("{}: {why}", host.name()));
    }
    Ok(proved)
}

/// Adds the SSHFP records of a host.
fn sshfp((host, index): (&HostFile, &Index), zone: Option<&Owner>, keys: &mut Keys) -> Result<(), String> {
    let owners = owners(host, zone)?;
    forbid((host, index), &owners, keys);
    // Another port of the same name may be a host of its own: its records are the same ones.
    let revokes = |other: &HostFile, key: &PublicKey| {
        other.revoked().any(|revoked| revoked == key)
            && self::owners(other, zone).is_ok_and(|its| its.iter().any(|owner| owners.contains(owner)))
    };
    let is_good =
        |key: &&PublicKey| !index.is_revoked(key) || !index.hosts().iter().any(|other| revokes(other, key));
    let proved: Vec<_> = proved(host, index)?.into_iter().filter(is_good).collect();
    let records: Vec<FingerprintRecord> = proved.iter().copied().filter_map(FingerprintRecord::of).collect();
    // Where only the file of another host revokes a key that is pinned here, this host is accepted with it.
    let revoked_elsewhere = proved.iter().copied().filter(|key| index.is_revoked(key));
    let good: Vec<FingerprintRecord> = revoked_elsewhere.flat_map(FingerprintRecord::believed).collect();
    let named = Some((host.name().clone(), host.port()));
    for owner in owners {
        for FingerprintRecord { algorithm, hash, fingerprint } in &good {
            keys.revoked.keep_sshfp(owner.clone(), *algorithm, *hash, fingerprint);
        }
        for FingerprintRecord { algorithm, hash, fingerprint } in &records {
            let record = Record::sshfp(owner.clone(), *algorithm, *hash, fingerprint);
            keys.wanted.push(Wanted { record, of: format!("host {}", host.name()), host: named.clone() });
        }
    }
    Ok(())
}

/// No record of a revoked key may be at the names of its host.
fn forbid((host, index): (&HostFile, &Index), owners: &[Owner], keys: &mut Keys) {
    let mut own = host.pins().map(|pin| &pin.key).chain(host.retired_keys().map(|(key, _)| key));
    if host.revoked().next().is_some() || own.any(|key| index.is_revoked(key)) {
        for owner in owners {
            keys.revoked.add_place(owner.clone(), Kind::Sshfp);
        }
    }
}

/// No record of this key may be at the names of an address.
fn forbid_key(
    path: &Path,
    key: &openpgp::Key,
    address: &Address,
    revoked: &mut Revoked,
) -> Result<(), Failure> {
    let fingerprint = key.fingerprint();
    for owner in address.openpgpkey_owners().map_err(|why| at(path, why))? {
        revoked.add_openpgp(owner, Kind::Openpgpkey, fingerprint);
    }
    let owner = address.cert_owner().map_err(|why| at(path, why))?;
    revoked.add_openpgp(owner, Kind::Cert, fingerprint);
    Ok(())
}

/// Refuses names of hosts that are gone, of which one is here and in service: its records are those that others go by.
fn refuse_present(index: &Index, zone: Option<&Owner>, revoked: &Revoked) -> Result<(), Failure> {
    if !revoked.has_gone() {
        return Ok(());
    }
    for name in index.damaged().keys() {
        match gone(name, zone, revoked) {
            Some(owner) => {
                return Err(Failure::runtime(format!(
                    "--without {owner}: a host of that name is here, and its file is damaged\n  hint: penstock host why {name}"
                )));
            }
            None => complain(&format!(
                "note: the file of host {} is damaged: whether it has a name of --without is not known\n",
                plain(&name.to_string())
            )),
        }
    }
    for host in index.hosts().iter().filter(|host| host.retired().is_none()) {
        let names = names(host);
        let Some(owner) = names.iter().find_map(|name| gone(name, zone, revoked)) else { continue };
        if proved(host, index).is_ok() {
            let name = host.name();
            let zone = if zone.is_none() { "; --zone names the zone of names without a dot" } else { "" };
            return Err(Failure::usage(format!(
                "--without {owner}: a host of that name is here, and has records\n  hint: if it is gone: penstock host retire {name}, or remove {name}{zone}"
            )));
        }
    }
    Ok(())
}

/// The name of a host that is gone, if `name` is that name. One without a dot is taken for it in any zone, if none is named.
fn gone<'r>(name: &Name, zone: Option<&Owner>, revoked: &'r Revoked) -> Option<&'r Owner> {
    let own = Owner::within(name.split_port().0, zone).ok()?;
    let is_it = |gone: &&Owner| match own.parent() {
        Some(_) => **gone == own,
        None => gone.labels().next() == own.labels().next(),
    };
    revoked.gone().find(is_it)
}

/// Names that a host has in the DNS.
fn names(host: &HostFile) -> Vec<Name> {
    let hints = host.address().names;
    if hints.is_empty() { vec![host.name().clone()] } else { hints }
}

/// Names of the SSHFP records of a host.
fn owners(host: &HostFile, zone: Option<&Owner>) -> Result<Vec<Owner>, String> {
    let mut owners = Vec::new();
    for name in &names(host) {
        let (name, _) = name.split_port();
        let owner = Owner::within(name, zone).map_err(|fault| format!("{}: {fault}", host.name()))?;
        if owner.parent().is_none() {
            let hint =
                "name the zone with --zone ZONE, or give the host its full name with `penstock host move`";
            return Err(format!("{}: {name} has no dot, so its zone is unknown: {hint}", host.name()));
        }
        owners.push(owner);
    }
    Ok(owners)
}

/// Ports of a listener that are known before it starts.
fn ports(listener: &Listener) -> Vec<u16> {
    let mut ports: Vec<u16> = listener
        .binds
        .iter()
        .filter_map(|bind| match bind {
            BindAddress::AnyIp(port) => Some(*port),
            BindAddress::Ip(address) => Some(address.port()),
            BindAddress::EveryPort(_) | BindAddress::Unix(_) | BindAddress::Systemd(_) => None,
        })
        .filter(|port| *port != 0)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Reads a file whole, which may have a private key.
pub(super) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let bytes = Zeroizing::new(file::read(path, LARGEST).map_err(|error| Failure::unreadable(path, error))?);
    match bytes.len() as u64 > LARGEST {
        true => Err(Failure::unreadable(path, "it has more than 1 MiB: it is not a file with a key")),
        false => Ok(bytes),
    }
}

pub(super) fn at(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::runtime(format!("{}: {}", plain(&path.display().to_string()), plain(&why.to_string())))
}
