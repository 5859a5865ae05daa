//! SSHFP records of hosts, as the DNS proves them: `crates/dns` validates the answer.

use std::net::SocketAddr;

pub use ::dns::{Anchor, ResolverFault as DnsError};
use ::dns::{Answer, Resolver};
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use hosts::identity::{FingerprintRecord, SshfpAnswer};

#[derive(Clone)]
pub struct Dns {
    resolver: Resolver,
}

impl Dns {
    /// Creates a resolver that asks `server`, or the name servers of the system. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The trust anchor or the system's configuration cannot be read.
    pub fn new(anchor: &Anchor, server: Option<SocketAddr>) -> Result<Self, DnsError> {
        Resolver::new(anchor, server).map(|resolver| Self { resolver })
    }

    /// Looks up the SSHFP records of a name.
    pub async fn sshfp(&self, name: &str) -> SshfpAnswer {
        let fingerprints = |records: Vec<Record>| records.iter().filter_map(fingerprint).collect();
        match self.resolver.look_up(name, RecordType::SSHFP).await {
            Answer::Secure(records) => SshfpAnswer::Secure(fingerprints(records)),
            Answer::Insecure(records) => SshfpAnswer::Insecure(fingerprints(records)),
            Answer::Bogus(why) => SshfpAnswer::Bogus(why),
            Answer::SecurelyNone | Answer::None => SshfpAnswer::None,
            Answer::Silent(why) | Answer::Failed(why) => SshfpAnswer::Failed(why),
        }
    }
}

fn fingerprint(record: &Record) -> Option<FingerprintRecord> {
    let RData::SSHFP(record) = &record.data else { return None };
    Some(FingerprintRecord {
        algorithm: record.algorithm.into(),
        hash: record.fingerprint_type.into(),
        fingerprint: record.fingerprint.clone(),
    })
}
