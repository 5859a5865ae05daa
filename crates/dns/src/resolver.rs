//! Look-ups with DNSSEC validation in this program: an answer counts only if its signatures lead to the trust anchor. The
//! AD bit of a resolver is not trusted.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hickory_proto::rr::Name;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError as Said, NetError};
use hickory_resolver::proto::dnssec::{Proof, TrustAnchors};
use hickory_resolver::proto::rr::{Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;
use thiserror::Error;

use access::keys::{Kind, Owner, Proved};

use crate::name;

#[derive(Debug, Clone)]
pub enum Anchor {
    /// The keys of the DNS root zone, which are part of the resolver library.
    Root,
    /// DNSKEY records in a file, in the format of zone files.
    File(PathBuf),
}

/// Reason why there is no resolver.
#[derive(Debug, Error)]
pub enum ResolverFault {
    /// The file with the trust anchor is not valid.
    #[error("cannot read the trust anchor {}: {why}", .path.display())]
    Anchor { path: PathBuf, why: String },
    /// The name servers of the system are unknown.
    #[error("cannot find out which DNS servers to ask: {0}")]
    Servers(String),
}

/// Whether answers are validated.
#[derive(Debug, Clone)]
pub(crate) enum Validation {
    /// To find servers: what is found is judged by other means.
    Off,
    UpTo(Anchor),
}

/// The answer to a look-up, judged as a whole: the worst proof of a record counts for all records.
#[derive(Debug, Clone)]
pub enum Answer {
    /// DNSSEC is valid up to the trust anchor.
    Secure(Vec<Record>),
    /// The name or its zone is not signed.
    Insecure(Vec<Record>),
    /// The zone should be signed, but the signatures are not valid.
    Bogus(String),
    /// There are none, and that is proved.
    SecurelyNone,
    /// There are none, and that is not proved.
    None,
    /// The resolver is away: another question would have no answer either. With the reason, which names the resolver.
    Silent(String),
    /// It gives no usable answer to this question. With the reason, which names the resolver.
    Failed(String),
}

#[derive(Clone)]
pub struct Resolver {
    resolver: TokioResolver,
    /// Who is asked, for messages.
    asked: String,
}

impl Resolver {
    /// Makes a validating resolver that asks `server`, or the name servers of the system. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The trust anchor or the system's configuration cannot be read.
    pub fn new(anchor: &Anchor, server: Option<SocketAddr>) -> Result<Self, ResolverFault> {
        Self::with(&Validation::UpTo(anchor.clone()), server)
    }

    pub(crate) fn with(validation: &Validation, server: Option<SocketAddr>) -> Result<Self, ResolverFault> {
        let servers = |error: NetError| ResolverFault::Servers(error.to_string());
        let (mut builder, asked) = match server {
            Some(server) => {
                let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
                connections.iter_mut().for_each(|connection| connection.port = server.port());
                let servers = vec![NameServerConfig::new(server.ip(), true, connections)];
                let config = ResolverConfig::from_name_servers(servers);
                let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
                (builder, format!("the resolver {server}"))
            }
            None => {
                let (config, options) = read_system_conf().map_err(servers)?;
                let all: Vec<String> = config.name_servers().iter().map(|one| one.ip.to_string()).collect();
                let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
                *builder.options_mut() = options;
                (builder, format!("the resolver {} of /etc/resolv.conf", all.join(", ")))
            }
        };
        let options = builder.options_mut();
        options.edns0 = true;
        let resolver = match validation {
            Validation::Off => builder.build(),
            Validation::UpTo(anchor) => {
                options.validate = true;
                let anchors = match anchor {
                    Anchor::Root => TrustAnchors::default(),
                    Anchor::File(path) => anchors(path)?,
                };
                builder.with_trust_anchor(Arc::new(anchors)).build()
            }
        };
        Ok(Self { resolver: resolver.map_err(servers)?, asked })
    }

    /// Looks up the records of a name, which may have a final dot.
    pub async fn look_up(&self, name: &str, kind: RecordType) -> Answer {
        // The final dot makes the name absolute: the search list of the system must not change it.
        let name = format!("{}.", name.trim_end_matches('.'));
        match Name::from_ascii(&name) {
            Ok(name) => self.answer(name, kind).await,
            Err(error) => Answer::Failed(error.to_string()),
        }
    }

    /// What is proved of the records of a name.
    pub async fn proved(&self, owner: &Owner, kind: Kind) -> Proved {
        let (name, kind) = (name::name(owner), name::record_type(kind));
        let data =
            |records: Vec<Record>| name::data(records.iter().filter(|record| record.record_type() == kind));
        match self.answer(name, kind).await {
            Answer::Secure(records) => Proved::Secure(data(records)),
            Answer::Insecure(records) => Proved::Insecure(data(records)),
            Answer::Bogus(why) => Proved::Bogus(why),
            Answer::SecurelyNone => Proved::SecurelyNone,
            Answer::None => Proved::None,
            Answer::Silent(why) | Answer::Failed(why) => Proved::Failed(why),
        }
    }

    /// Whether the trust anchor proves which keys a zone has, by the DS records in its parent zone.
    pub async fn vouches_for(&self, zone: &Owner) -> bool {
        matches!(self.answer(name::name(zone), RecordType::DS).await, Answer::Secure(_))
    }

    pub(crate) async fn answer(&self, name: Name, kind: RecordType) -> Answer {
        match self.resolver.lookup(name, kind).await {
            Ok(lookup) => judged(lookup.answers(), kind),
            Err(NetError::Dns(Said::DnssecBogus)) => Answer::Bogus("the signatures do not hold".into()),
            Err(NetError::Dns(Said::Nsec { proof: Proof::Bogus, .. })) => {
                Answer::Bogus("the DNSSEC proof that there are none is invalid".into())
            }
            Err(NetError::Dns(Said::Nsec { proof: Proof::Secure, .. })) => Answer::SecurelyNone,
            Err(NetError::Dns(Said::NoRecordsFound(_) | Said::Nsec { .. })) => Answer::None,
            Err(error @ (NetError::Timeout | NetError::NoConnections | NetError::Io(_))) => {
                Answer::Silent(self.failed(&error))
            }
            Err(error) => Answer::Failed(self.failed(&error)),
        }
    }

    fn failed(&self, error: &NetError) -> String {
        format!("{}: {error}", self.asked)
    }

    /// Addresses of a host, at least one, or the reason why there are none.
    pub(crate) async fn addresses(&self, host: &Name) -> Result<Vec<IpAddr>, String> {
        let found = self.resolver.lookup_ip(host.clone()).await.map_err(|error| match error {
            NetError::Dns(Said::NoRecordsFound(_)) => "the DNS has none".to_owned(),
            error => self.failed(&error),
        })?;
        let found: Vec<IpAddr> = found.iter().collect();
        if found.is_empty() { Err("the DNS has none".to_owned()) } else { Ok(found) }
    }
}

fn judged(records: &[Record], kind: RecordType) -> Answer {
    if records.iter().any(|record| record.proof == Proof::Bogus) {
        return Answer::Bogus("the signatures do not hold".into());
    }
    if !records.iter().any(|record| record.record_type() == kind) {
        return Answer::None;
    }
    // RRSIG records have no signature of their own; all other records, aliases too, must be proved.
    let proved = records.iter().filter(|record| record.record_type() != RecordType::RRSIG);
    let records: Vec<Record> = proved.cloned().collect();
    if records.iter().all(|record| record.proof == Proof::Secure) {
        Answer::Secure(records)
    } else {
        Answer::Insecure(records)
    }
}

fn anchors(path: &Path) -> Result<TrustAnchors, ResolverFault> {
    let fault = |why: String| ResolverFault::Anchor { path: path.to_owned(), why };
    TrustAnchors::from_file(path).map_err(|error| fault(format!("{error} (it holds DNSKEY records)")))
}
