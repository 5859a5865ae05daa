use std::fmt;

/// A name in the DNS that stands for as many backends as it has addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DnsName {
    /// `dns:app.internal:8000`: each address of the name, with this port.
    Addresses {
        /// Host name.
        host: String,
        /// Port.
        port: u16,
    },
    /// `srv:_http._tcp.app.internal`: each address of each target of the SRV records.
    Services {
        /// Owner of the records.
        owner: String,
    },
}

impl DnsName {
    /// The name that is looked up.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Addresses { host, .. } => host,
            Self::Services { owner } => owner,
        }
    }

    /// Whether a backend of this name (`app.internal@10.0.0.1:80`) may belong to it.
    #[must_use]
    pub fn may_have(&self, backend: &str) -> bool {
        backend.strip_prefix(self.name()).is_some_and(|rest| rest.starts_with('@'))
    }

    /// The host for which certificates and requests of health checks are. For SRV records it is the owner without
    /// `_service._protocol`, and not their target: who can forge an answer could choose that.
    #[must_use]
    pub fn host(&self) -> &str {
        let mut host = self.name();
        while let Some((_, rest)) = host.split_once('.').filter(|(label, _)| label.starts_with('_')) {
            host = rest;
        }
        host
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addresses { host, port } => write!(f, "dns:{host}:{port}"),
            Self::Services { owner } => write!(f, "srv:{owner}"),
        }
    }
}
