//! What backends are told of a client's TLS: in header fields, and in PROXY headers of version 2.

use logic::proxy_header::{Additions, ClientProof, Tls};
use rustls::{HandshakeKind, ServerConnection};

use super::client::Identity;
use super::policy;

/// What is known of a client besides its address.
#[derive(Debug)]
pub struct Session {
    /// Who it is, if it has shown a certificate that is good.
    pub identity: Option<Identity>,
    /// For PROXY headers of version 2.
    pub additions: Additions,
}

/// Whether PROXY headers of version 2 are sent to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// They may be.
    Additions,
    /// There is nobody to be told.
    Nothing,
}

impl Session {
    /// After a handshake. `None`: there is nothing to tell, or nobody.
    pub(super) fn of(
        connection: &ServerConnection,
        version: &'static str,
        identity: Option<Identity>,
        telling: Telling,
    ) -> Option<Self> {
        let mut additions = Additions::default();
        if telling == Telling::Additions {
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
