//! SSHFP records with DNSSEC validation in this program: an answer counts only if its signatures lead to the trust
//! anchor. The AD bit of a resolver is not trusted.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError as Said, NetError};
use hickory_resolver::proto::dnssec::{Proof, TrustAnchors};
use hickory_resolver::proto::rr::{RData, Record, RecordType};
use hickory_resolver::{Resolver, TokioResolver};
use hosts::identity::{FingerprintRecord, SshfpAnswer};
use thiserror::Error;

#[derive(Debug, Clone)]
pub enum Anchor {
    /// The keys of the DNS root zone, which are part of the resolver library.
    Root,
    /// DNSKEY records in a file, in the format of zone files.
    File(PathBuf),
}

/// Reason why there is no resolver.
#[derive(Debug, Error)]
pub enum DnsError {
    /// The file with the trust anchor is not valid.
    #[error("cannot read the trust anchor {}: {why}", .path.display())]
    Anchor { path: PathBuf, why: String },
    /// The name servers of the system are unknown.
    #[error("cannot find out which DNS servers to ask: {0}")]
    Servers(String),
}

#[derive(Clone)]
pub struct Dns {
    resolver: TokioResolver,
}

impl Dns {
    /// Creates a resolver that asks `server`, or the name servers of the system. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The trust anchor or the system's configuration cannot be read.
    pub fn new(anchor: &Anchor, server: Option<SocketAddr>) -> Result<Self, DnsError> {
        let mut builder = match server {
            Some(server) => {
                let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
                connections.iter_mut().for_each(|connection| connection.port = server.port());
                let servers = vec![NameServerConfig::new(server.ip(), true, connections)];
                let config = ResolverConfig::from_name_servers(servers);
                Resolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
            None => TokioResolver::builder_tokio().map_err(|error| DnsError::Servers(error.to_string()))?,
        };
        let options = builder.options_mut();
        options.validate = true;
        options.edns0 = true;
        let anchors = match anchor {
            Anchor::Root => TrustAnchors::default(),
            Anchor::File(path) => anchors(path)?,
        };
        let resolver = builder.with_trust_anchor(Arc::new(anchors)).build();
        resolver.map(|resolver| Self { resolver }).map_err(|error| DnsError::Servers(error.to_string()))
    }

    /// Looks up the SSHFP records of a name.
    pub async fn sshfp(&self, name: &str) -> SshfpAnswer {
        // The final dot makes the name absolute: the search list of the system must not change it.
        let name = format!("{}.", name.trim_end_matches('.'));
        match self.resolver.lookup(name.as_str(), RecordType::SSHFP).await {
            Ok(lookup) => of_records(lookup.answers()),
            Err(NetError::Dns(Said::DnssecBogus)) => SshfpAnswer::Bogus("the signatures do not hold".into()),
            Err(NetError::Dns(Said::Nsec { proof: Proof::Bogus, .. })) => {
                SshfpAnswer::Bogus("the DNSSEC proof that there are none is invalid".into())
            }
            Err(NetError::Dns(Said::NoRecordsFound(_) | Said::Nsec { .. })) => SshfpAnswer::None,
            Err(error) => SshfpAnswer::Failed(error.to_string()),
        }
    }
}

/// Judges an answer as a whole: the worst proof of a record counts for all records.
fn of_records(records: &[Record]) -> SshfpAnswer {
    let fingerprints: Vec<_> = records.iter().filter_map(fingerprint).collect();
    if records.iter().any(|record| record.proof == Proof::Bogus) {
        return SshfpAnswer::Bogus("the signatures do not hold".into());
    }
    if fingerprints.is_empty() {
        return SshfpAnswer::None;
    }
    // RRSIG records have no signature of their own; all other records, aliases too, must be proved.
    let proved = records.iter().filter(|record| record.record_type() != RecordType::RRSIG);
    if proved.into_iter().all(|record| record.proof == Proof::Secure) {
        SshfpAnswer::Secure(fingerprints)
    } else {
        SshfpAnswer::Insecure(fingerprints)
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

fn anchors(path: &Path) -> Result<TrustAnchors, DnsError> {
    let fault = |why: String| DnsError::Anchor { path: path.to_owned(), why };
    TrustAnchors::from_file(path).map_err(|error| fault(format!("{error} (it holds DNSKEY records)")))
}
