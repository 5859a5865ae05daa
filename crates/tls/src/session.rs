//! TLS facts about a client for backends, in header fields and in PROXY headers of version 2.

use logic::proxy_header::{Additions, ClientProof, Tls};
use rustls::{HandshakeKind, ServerConnection};

use super::client::Identity;
use super::policy;

/// Facts about a client besides its address.
#[derive(Debug)]
pub struct ClientFacts {
    /// Identity from a verified client certificate.
    pub identity: Option<Identity>,
    /// Fields for PROXY headers of version 2.
    pub additions: Additions,
}

/// Tells whether a backend gets PROXY headers of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyAdditions {
    Additions,
    Nothing,
}

impl ClientFacts {
    /// Collects the facts after a handshake. `None` if there are none or no backend gets them.
    pub(super) fn of(
        connection: &ServerConnection,
        version: &'static str,
        identity: Option<Identity>,
        telling: ProxyAdditions,
    ) -> Option<Self> {
        let mut additions = Additions::default();
        if telling == ProxyAdditions::Additions {
            if let Some(protocol) = connection.alpn_protocol() {
                additions.alpn(protocol);
            }
            if let Some(name) = connection.server_name() {
                additions.authority(name);
            }
            let cipher = connection.negotiated_cipher_suite().and_then(policy::name_of);
            additions.tls(&Tls {
                version,
                cipher: cipher.unwrap_or_default(),
                client: match (&identity, connection.handshake_kind()) {
                    (None, _) => ClientProof::None,
                    (Some(_), Some(HandshakeKind::Resumed)) => ClientProof::InSession,
                    (Some(_), _) => ClientProof::OnConnection,
                },
                common_name: identity.as_ref().and_then(|identity| identity.common_name.as_deref()),
            });
        } else if identity.is_none() {
            return None;
        }
        Some(Self { identity, additions })
    }
}
