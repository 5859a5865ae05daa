//! The way of an issued certificate through the gate of keys in the DNS: `crates/access/src/keys/gate.rs` decides.

use std::net::SocketAddr;

use access::keys::{Association, Owner, sets};
use config::types::AcmeTlsa;
use dns::{Authorities, Roll, Services, SignedServer, Waiting};
use logic::tsig_key::TsigKey;
use sys::file;
use tls::Bundle;

use super::fault::Fault;
use super::kept::on_disk;

/// Largest file with a key in bytes.
const LARGEST: u64 = 64 * 1024;

/// A certificate that may be used.
pub(super) struct Passed {
    roll: Roll,
    services: Vec<SocketAddr>,
}

/// What is in use before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Another certificate for the same names.
    Certificate,
    /// None: a client that remembers a record could not connect anyway.
    Nothing,
}

/// Pushes the TLSA records of a certificate and waits until it may be used. `None` if it has no name that could have one.
/// `tell` gets what is waited for.
pub(super) async fn pass(
    settings: &AcmeTlsa,
    text: &str,
    before: Before,
    tell: impl Fn(String),
) -> Result<Option<Passed>, Fault> {
    let (names, chain) = Bundle::chain(text.as_bytes()).map_err(Fault::Unusable)?;
    let mut records = Vec::new();
    let mut ports: Vec<u16> = settings.services.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    // A TLSA record has no wildcard inside of its name.
    for name in names.iter().filter(|name| !name.starts_with("*.")) {
        for port in &ports {
            let owner = Owner::parse(name).and_then(|host| Owner::of_service(*port, &host));
            let owner = owner.map_err(|fault| Fault::Tlsa(fault.to_string()))?;
            let record = Association::Server.record(owner, &chain);
            records.push(record.map_err(|fault| Fault::Unusable(fault.to_string()))?);
        }
    }
    if records.is_empty() {
        return Ok(None);
    }
    let path = settings.key_file.clone();
    let key = on_disk(move || {
        let text = file::read(&path, LARGEST);
        let text = text.map_err(|source| Fault::File { path: path.clone(), what: "read", source })?;
        TsigKey::parse(&String::from_utf8_lossy(&text)).map_err(|fault| Fault::Setting {
            key: "tlsa.key-file",
            why: format!("{}: {fault}", path.display()),
        })
    });
    let server = SignedServer::new(settings.server, key.await?)
        .map_err(|why| Fault::Setting { key: "tlsa.key-file", why })?;
    let failed = |fault: &dyn std::fmt::Display| Fault::Tlsa(fault.to_string());
    let mut authorities = Authorities::new(&settings.servers, None).map_err(|fault| failed(&fault))?;
    let begun = Roll::begin(server, sets(&records), &mut authorities, settings.limit).await;
    let mut roll = begun.map_err(|fault| failed(&fault))?;
    if before == Before::Nothing {
        return Ok(Some(Passed { roll, services: settings.services.clone() }));
    }
    let visible = roll.visible(|waiting| {
        tell(match waiting {
            Waiting::For(servers) => format!("waiting for its TLSA record: {}", servers.join(", ")),
            Waiting::Until(rest) => {
                format!("its TLSA record is everywhere; {} s until no cache is without it", rest.as_secs())
            }
        });
    });
    visible.await.map_err(|fault| failed(&fault))?;
    Ok(Some(Passed { roll, services: settings.services.clone() }))
}

impl Passed {
    /// Waits until every address of the service shows the new certificate, then removes the record of the old one.
    pub(super) async fn left(mut self) -> Result<(), Fault> {
        let left = self.roll.left(&Services::At(&self.services)).await;
        left.map_err(|fault| Fault::Tlsa(fault.to_string()))
    }
}
