//! A new host key: its SSHFP records, its files, the host that shows it, and its pin.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin;
use std::time::Duration;

use access::keys::{Kind, Others, Owner, Record, Seen, Set, Shown, sets};
use clap::ValueEnum;
use dns::{Authorities, Look, Looked, Roll, RollFault, ZoneKeys, too_many};
use hosts::identity::{Found, HostFile, Name, Pin, Proof};
use hosts::ssh::key::PublicKey;
use ssh::identity::{Places, Store, now};
use ssh::keys::{PrivatePart, key_in_file};
use ssh::{ConfigFiles, SshConfig};
use sys::file::{self, Access};
use zeroize::Zeroizing;

use crate::cmd::dns::services::{host_keys, ssh_port, sshfp};
use crate::cmd::dns::wanted::at;
use crate::output::{Failure, complain, plain};

/// Pause between two looks at the host: OpenSSH counts connections without a log-in against their source.
const PAUSE: Duration = Duration::from_secs(5);

/// Type of a host key, with its number in SSHFP records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Algorithm {
    Rsa = 1,
    Ecdsa = 3,
    Ed25519 = 4,
}

impl Algorithm {
    fn of(number: u8) -> Option<Self> {
        [Self::Rsa, Self::Ecdsa, Self::Ed25519].into_iter().find(|one| *one as u8 == number)
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Rsa => "rsa",
            Self::Ecdsa => "ecdsa",
            Self::Ed25519 => "ed25519",
        }
    }
}

pub(super) struct HostKey {
    host: Name,
    key: PublicKey,
    /// The file with the private key, and the text of the public one.
    private: Option<(PathBuf, String)>,
    records: Vec<Record>,
    /// Where its sshd is, at the addresses of its names.
    port: u16,
}

impl HostKey {
    /// Reads the file that `--next` names, and finds the names of the host in the DNS.
    pub(super) fn read(path: &Path, into: Option<&Path>, host: &Name) -> Result<Self, Failure> {
        let found = key_in_file(path).map_err(|fault| Failure::runtime(plain(&fault.to_string())))?;
        match found.private {
            PrivatePart::Absent if into.is_some() => {
                return Err(at(path, "it has no private key, and --into needs it"));
            }
            PrivatePart::Locked => {
                return Err(at(
                    path,
                    "it is encrypted with a passphrase: sshd cannot use it (ssh-keygen -p)",
                ));
            }
            PrivatePart::Absent | PrivatePart::Open => {}
        }
        let index =
            Store::new(Places::of_user().map_err(Failure::runtime)?).load().map_err(Failure::runtime)?;
        let config = SshConfig::read(&ConfigFiles::Usual).ok();
        let (names, port) = match index.find(host.as_str(), 22) {
            Found::Host(known) => {
                let hints = known.address().names;
                let names = if hints.is_empty() { vec![known.name().clone()] } else { hints };
                (names, ssh_port(config.as_ref(), known.name(), known.port()))
            }
            _ => {
                complain(&format!("note: {host} has no identity here: the new key is not pinned\n"));
                (vec![host.clone()], ssh_port(config.as_ref(), host, host.split_port().1))
            }
        };
        let mut records = Vec::new();
        for name in names {
            let (name, _) = name.split_port();
            let owner = Owner::parse(name).map_err(|fault| Failure::runtime(format!("{host}: {fault}")))?;
            if owner.parent().is_none() {
                let hint =
                    "name the host as the DNS does, or give it its full name with `penstock host move`";
                return Err(Failure::runtime(format!(
                    "{host}: {name} has no dot, so its zone is unknown\n  hint: {hint}"
                )));
            }
            let record = sshfp(&owner, &found.public);
            let why = "SSHFP records have no number for keys of this type";
            records.push(record.ok_or_else(|| at(path, why))?);
        }
        let comment = host.split_port().0;
        let line = format!("{} {comment}\n", found.public);
        let private = (found.private == PrivatePart::Open).then(|| (path.to_path_buf(), line));
        Ok(Self { host: host.clone(), key: found.public, private, records, port })
    }

    pub(super) fn wanted(&self) -> BTreeMap<(Owner, Kind), Set> {
        sets(&self.records)
    }

    /// Number of the type of the new key.
    fn number(&self) -> u8 {
        self.records.first().and_then(|record| record.data.first()).copied().unwrap_or_default()
    }

    /// The records of the key that leaves. A zone in which a second key of the same type has a record is refused.
    pub(super) async fn leaving(
        &self,
        authorities: &mut Authorities,
        replaces: &[Algorithm],
    ) -> Result<Others, Failure> {
        let mut others = Set::new();
        for record in &self.records {
            let zone = authorities.zone_of(&record.owner).await;
            let zone = zone.map_err(|why| Failure::runtime(plain(&why.to_string())))?;
            let servers = authorities.servers(&zone).await;
            for server in servers.map_err(|why| Failure::runtime(plain(&why)))? {
                let seen = server.see(&zone, &record.owner, Kind::Sshfp, &ZoneKeys::Unproved).await;
                if let Seen::Records { data, .. } = seen {
                    others.extend(data.into_iter().filter(|data| *data != record.data));
                }
            }
        }
        let number = |data: &Vec<u8>| data.first().copied().unwrap_or_default();
        let numbers: BTreeSet<u8> = others.iter().map(number).collect();
        if numbers.contains(&self.number()) {
            return Err(self.second_of_a_type());
        }
        let chosen: BTreeSet<u8> = match (replaces, numbers.len()) {
            ([], 0 | 1) => numbers,
            ([], _) => {
                let words: Vec<&str> =
                    numbers.iter().filter_map(|number| Algorithm::of(*number)).map(Algorithm::word).collect();
                return Err(Failure::usage(format!(
                    "{} has records of several other keys ({}): which leaves?\n  hint: --replaces {}",
                    self.host,
                    words.join(", "),
                    words.first().unwrap_or(&"TYPE")
                )));
            }
            (named, _) => {
                let missing = named.iter().find(|named| !numbers.contains(&(**named as u8)));
                if let Some(missing) = missing {
                    return Err(Failure::usage(format!(
                        "--replaces {}: {} has no record of a key of this type",
                        missing.word(),
                        self.host
                    )));
                }
                named.iter().map(|named| *named as u8).collect()
            }
        };
        others.retain(|data| chosen.contains(&number(data)));
        Ok(Others::RemoveThese(others))
    }

    fn second_of_a_type(&self) -> Failure {
        let word = Algorithm::of(self.number()).map_or("this", Algorithm::word);
        let other = if word == "ecdsa" { "ed25519" } else { "ecdsa" };
        Failure::runtime(format!(
            "{} has an SSHFP record of another {word} key: with records of two keys of one type, ssh refuses the host, whichever of them it \
             shows; nothing is changed, and the old host key stays in use\n  \
             hint: roll to a key of another type first (ssh-keygen -t {other}), then back; where the host has a key of another type in use \
             already, take the {word} key out of its sshd_config, then `penstock host retire --key`, `penstock dns push`, and begin anew after \
             twice the TTL",
            self.host
        ))
    }

    /// Pins the new key, so that commands accept the host as soon as it shows the key.
    pub(super) fn pin(&self) -> Result<(), String> {
        let pin =
            Pin { key: self.key.clone(), proof: Proof::Key, date: now().date(), by: None, absent: None };
        self.change(|host| {
            if host.pin(&self.key).is_none() {
                host.pin_key(pin.clone());
            }
        })
    }

    /// Changes the identity of the host, if it has one here.
    fn change(&self, change: impl FnOnce(&mut HostFile)) -> Result<(), String> {
        let store = Places::of_user().map(Store::new).map_err(|error| error.to_string())?;
        let index = store.load().map_err(|error| error.to_string())?;
        let Found::Host(known) = index.find(self.host.as_str(), 22) else { return Ok(()) };
        let name = known.name().clone();
        let changed = store.change(&name, |host| {
            let mut host = host.unwrap_or_else(|| HostFile::new(name.clone()));
            change(&mut host);
            Ok(host)
        });
        changed.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Moves the private key into place, and the public one beside it.
    pub(super) fn install(&self, into: &Path) -> Result<(), String> {
        let Some((path, line)) = &self.private else { return Ok(()) };
        let text = file::read_secret(path, LARGEST).map(Zeroizing::new);
        let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
        file::replace(into, &text, Access::AsBefore).map_err(|error| error.to_string())?;
        let mut public = into.as_os_str().to_owned();
        public.push(".pub");
        // sshd goes by the private key; the public one is for people.
        if let Err(error) = file::replace(Path::new(&public), line.as_bytes(), Access::Public) {
            let public = plain(&Path::new(&public).display().to_string());
            complain(&format!(
                "note: {public} cannot be written ({error}): it is not that of the new host key, which sshd uses without it\n"
            ));
        }
        Ok(())
    }

    /// Waits until every address shows the new key, and none a key whose record leaves; then the record goes.
    pub(super) async fn left(
        &self,
        at: &[SocketAddr],
        roll: &mut Roll,
        authorities: &Authorities,
        leaving: &Others,
    ) -> Result<(), RollFault> {
        let leaving: BTreeSet<u8> = match leaving {
            Others::RemoveThese(data) => data.iter().filter_map(|data| data.first().copied()).collect(),
            Others::Remove | Others::Keep => BTreeSet::new(),
        };
        let look = HostLook { records: &self.records, services: at, port: self.port, authorities, leaving };
        roll.left(PAUSE, &look).await
    }

    /// Retires the pins of keys of the type that has left.
    pub(super) fn retire_old(&self, leaving: &Others) -> Result<(), Failure> {
        let Others::RemoveThese(data) = leaving else { return Ok(()) };
        let is_old = |pin: &PublicKey| {
            let record = self.records.first().and_then(|own| sshfp(&own.owner, pin));
            record.is_some_and(|record| data.contains(&record.data))
        };
        let today = now().date();
        let mut retired = Vec::new();
        let changed = self.change(|host| {
            let old: Vec<PublicKey> =
                host.pins().map(|pin| pin.key.clone()).filter(|pin| is_old(pin)).collect();
            for key in old {
                host.retire_key(&key, today);
                retired.push(key.fingerprint().to_string());
            }
        });
        changed.map_err(|why| {
            Failure::runtime(format!(
                "the new host key is in use, and the record of the old one is gone, but the pin of the old one stays: {}",
                plain(&why)
            ))
        })?;
        for fingerprint in retired {
            complain(&format!("{} no longer has {fingerprint}\n", self.host));
        }
        Ok(())
    }
}

/// Limit of a file with a host key in bytes.
const LARGEST: u64 = 64 * 1024;

/// A look at the host keys that every address of a host shows.
struct HostLook<'a> {
    records: &'a [Record],
    /// Where it is; empty: at the addresses of its names.
    services: &'a [SocketAddr],
    port: u16,
    authorities: &'a Authorities,
    /// Numbers of the types of keys that leave.
    leaving: BTreeSet<u8>,
}

impl Look for HostLook<'_> {
    fn look(&self) -> pin::Pin<Box<dyn Future<Output = Vec<Looked>> + Send + '_>> {
        Box::pin(self.look_once())
    }
}

impl HostLook<'_> {
    async fn look_once(&self) -> Vec<Looked> {
        let mut found = Vec::new();
        for record in self.records {
            let addresses: Vec<SocketAddr> = match self.services {
                [] => match self.authorities.addresses(&record.owner).await {
                    Ok(addresses) => addresses.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect(),
                    Err(why) => {
                        let (place, why) = (record.owner.to_string(), format!("has no address: {why}"));
                        found.push(Looked { place, shown: Shown::Silent, why });
                        continue;
                    }
                },
                named => named.to_vec(),
            };
            if let Some(fault) = too_many(&record.owner, addresses.len()) {
                found.push(fault);
                continue;
            }
            for address in addresses {
                found.push(looked(address, record, &self.leaving).await);
            }
        }
        found
    }
}

/// What one address of the host shows.
async fn looked(address: SocketAddr, record: &Record, leaving: &BTreeSet<u8>) -> Looked {
    let (shown, why) = match host_keys(address, &record.owner).await {
        Err(why) => (Shown::Silent, format!("cannot be asked: {why}")),
        Ok(keys) => {
            let records: Vec<Record> = keys.iter().filter_map(|key| sshfp(&record.owner, key)).collect();
            let is_old = |shown: &Record| shown.data.first().is_some_and(|number| leaving.contains(number));
            if records.iter().any(is_old) {
                (Shown::Old, "shows the old key".to_owned())
            } else if records.iter().any(|shown| shown.data == record.data) {
                (Shown::New, "shows the new key".to_owned())
            } else {
                (Shown::Old, "does not show the new key".to_owned())
            }
        }
    };
    Looked { place: address.to_string(), shown, why }
}
