//! What services show: certificates over TLS, host keys over SSH.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use access::keys::{Association, Kind, Live, Owner, Record, Set, fits};
use clap::ValueEnum;
use dns::{Dialect, TlsStart, Unlimited, chains};
use hosts::identity::{FingerprintRecord, Name};
use hosts::ssh::config::Asked;
use hosts::ssh::key::PublicKey;
use ssh::identity::{Identities, Places, Store, TYPES, fetch, has_no_such_key};
use ssh::{HostVerifier, LocationSources, SshConfig, Target};

/// Time limit of one handshake.
const LIMIT: Duration = Duration::from_secs(5);
/// Port of SSH, where nothing names another one.
const SSH: u16 = 22;
/// Limit of the addresses of one host that are asked.
const MOST: usize = 16;

/// How TLS begins at a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum StartTls {
    /// At once
    None,
    Smtp,
    Imap,
    Pop3,
    Sieve,
    Nntp,
    Ftp,
}

impl StartTls {
    /// Port on which servers of this protocol usually listen.
    pub(super) const fn port(self) -> u16 {
        match self {
            Self::None => 443,
            Self::Smtp => 25,
            Self::Imap => 143,
            Self::Pop3 => 110,
            Self::Sieve => 4190,
            Self::Nntp => 119,
            Self::Ftp => 21,
        }
    }

    pub(super) const fn start(self) -> TlsStart {
        TlsStart::After(match self {
            Self::None => return TlsStart::AtOnce,
            Self::Smtp => Dialect::Smtp,
            Self::Imap => Dialect::Imap,
            Self::Pop3 => Dialect::Pop3,
            Self::Sieve => Dialect::Sieve,
            Self::Nntp => Dialect::Nntp,
            Self::Ftp => Dialect::Ftp,
        })
    }
}

/// The port of the sshd of a host, as `penstock run` finds it: that of `ssh_config` where this names the host or the port, else
/// the hint of the host.
pub(super) fn ssh_port(config: Option<&SshConfig>, name: &Name, hint: Option<u16>) -> u16 {
    let (host, port) = name.split_port();
    let asked = Asked { host: host.to_owned(), port, ..Asked::default() };
    let said = config.and_then(|config| {
        let resolved = config.resolve(&asked).ok()?;
        let said = LocationSources::of(&resolved, &config.local().home);
        (said.host.is_some() || said.port.is_some()).then_some(resolved.port)
    });
    said.or(hint).unwrap_or(SSH)
}

/// Asks the service that the records of a name are of, at all of its addresses; sshd at each of `ssh_ports`.
pub(super) async fn ask(
    owner: &Owner,
    kind: Kind,
    wanted: &Set,
    (addresses, ssh_ports): (&[IpAddr], &BTreeSet<u16>),
    start: Option<StartTls>,
) -> Vec<Live> {
    let all: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let addresses: Vec<IpAddr> = all.iter().copied().take(MOST).collect();
    let mut found = Vec::new();
    match kind {
        Kind::Tlsa => {
            let Some((port, host)) = owner.service() else { return found };
            let addresses: Vec<SocketAddr> =
                addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
            let start = start.map(StartTls::start);
            for (address, chain) in chains(&host, &addresses, start, &Unlimited).await {
                found.push(tls(address, &host, wanted, chain));
            }
        }
        Kind::Sshfp => {
            for address in addresses {
                for port in ssh_ports {
                    found.push(ssh(SocketAddr::new(address, *port), owner, wanted).await);
                }
            }
        }
        Kind::Cert | Kind::Openpgpkey => return found,
    }
    if all.len() > MOST {
        let why = format!("it has {} addresses, and only {MOST} were asked", all.len());
        found.push(Live::Silent { address: owner.to_string(), why });
    }
    found
}

fn tls(address: SocketAddr, host: &Owner, wanted: &Set, chain: Result<Vec<Vec<u8>>, String>) -> Live {
    let shown = address.to_string();
    match chain {
        Err(why) => Live::Silent { address: shown, why },
        Ok(chain) if fits(wanted, &chain) => Live::Fits(shown),
        Ok(chain) => {
            let record = Association::Server.record(host.clone(), &chain);
            let text = record.map_or_else(|why| why.to_string(), |record| record.data_text());
            Live::Differs { address: shown, shown: text }
        }
    }
}

/// Compares every host key that the server has: a client may ask for any of them.
async fn ssh(address: SocketAddr, owner: &Owner, wanted: &Set) -> Live {
    let shown = address.to_string();
    let keys = match host_keys(address, owner).await {
        Ok(keys) => keys,
        Err(why) => return Live::Silent { address: shown, why },
    };
    let records = keys.iter().filter_map(|key| sshfp(owner, key));
    match records.into_iter().find(|record| !wanted.contains(&record.data)) {
        Some(record) => Live::Differs { address: shown, shown: record.data_text() },
        None => Live::Fits(shown),
    }
}

/// The SSHFP record of a host key; `None` for types of keys without one.
pub(super) fn sshfp(owner: &Owner, key: &PublicKey) -> Option<Record> {
    let FingerprintRecord { algorithm, hash, fingerprint } = FingerprintRecord::of(key)?;
    Some(Record::sshfp(owner.clone(), algorithm, hash, &fingerprint))
}

/// All host keys that a server has. The error says why not all are known.
pub(super) async fn host_keys(address: SocketAddr, host: &Owner) -> Result<Vec<PublicKey>, String> {
    let store = Places::of_user().map(Store::new).map_err(|error| error.to_string())?;
    let judge: Arc<dyn HostVerifier> = Arc::new(Identities::load(store).map_err(|error| error.to_string())?);
    let mut keys = Vec::new();
    for types in TYPES {
        let mut target = Target::new(&host.to_string(), "penstock");
        target.addresses.known = vec![address.ip()];
        target.port = address.port();
        target.connect_timeout = LIMIT;
        target.algorithms.host_keys = types.iter().map(|name| (*name).to_owned()).collect();
        match fetch(&target, types, judge.clone()).await {
            Ok(shown) => keys.push(shown.key),
            Err(failure) if has_no_such_key(&failure) => {}
            Err(failure) => return Err(failure.detail),
        }
    }
    match keys.is_empty() {
        true => Err("it has no host key of a type that has SSHFP records".to_owned()),
        false => Ok(keys),
    }
}
