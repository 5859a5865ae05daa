//! Certificates of clients: who is asked, who is let in, and what is told of them.
//!
//! `trust.rs` holds the CAs and revocation lists in service, `identity.rs` reads what a certificate says. A change of either
//! makes a new configuration for the next handshake, with ticket keys of its own: a session from before is not resumed,
//! its client shows its certificate again.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use config::types::{ClientCertificateMode, ClientCertificates};
use logic::client_name::NamePattern;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, HandshakeKind, ServerConfig,
    ServerConnection, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};

mod identity;
mod trust;

pub use identity::Identity;
pub(super) use trust::{Anchors, Trust, TrustSource};

use super::sha256::digest;
use super::tickets::Asked;
use crate::ending::{ClientFault, TlsFault};

/// What a listener asks of its clients.
pub(super) struct Clients {
    settings: ClientCertificates,
    trust: Arc<Trust>,
    ready: ArcSwapOption<Ready>,
}

/// What handshakes are made with while the trust is as it was.
pub(super) struct Ready {
    anchors: Arc<Anchors>,
    verifier: Arc<Verifier>,
    pub(super) config: Arc<ServerConfig>,
}

impl Clients {
    pub(super) fn new(settings: &ClientCertificates, trust: Arc<Trust>) -> Self {
        Self { settings: settings.clone(), trust, ready: ArcSwapOption::empty() }
    }

    /// What the next handshake is made with. `make` is called when the trust has changed.
    pub(super) fn ready(
        &self,
        make: impl FnOnce(Arc<dyn ClientCertVerifier>, Asked) -> ServerConfig,
    ) -> Arc<Ready> {
        let anchors = self.trust.anchors();
        if let Some(ready) = self.ready.load_full()
            && Arc::ptr_eq(&ready.anchors, &anchors)
        {
            return ready;
        }
        let (mode, names) = (self.settings.mode, self.settings.names.clone());
        let verifier = Arc::new(Verifier { anchors: anchors.clone(), mode, names });
        let config = Arc::new(make(verifier.clone(), self.asked(&anchors)));
        let ready = Arc::new(Ready { anchors, verifier, config });
        self.ready.store(Some(ready.clone()));
        ready
    }

    /// Who the client of a finished handshake is. A session that was resumed is looked at as if it were new: its
    /// certificate may have expired meanwhile.
    pub(super) fn identify(
        &self,
        ready: &Ready,
        connection: &ServerConnection,
    ) -> Result<Option<Identity>, TlsFault> {
        let Some([leaf, rest @ ..]) = connection.peer_certificates() else {
            return match self.settings.mode {
                ClientCertificateMode::Request => Ok(None),
                ClientCertificateMode::Require => Err(TlsFault::Client(ClientFault::Missing)),
            };
        };
        if connection.handshake_kind() == Some(HandshakeKind::Resumed) {
            let verified = ready.verifier.verify_client_cert(leaf, rest, UnixTime::now());
            verified.map_err(|error| TlsFault::Client(ClientFault::of(&error)))?;
        }
        match Identity::of(leaf, rest, &self.settings.headers) {
            Ok(identity) => Ok(Some(identity)),
            Err(_) => Err(TlsFault::Client(ClientFault::Malformed)),
        }
    }

    /// Everything that decides about clients, hashed.
    fn asked(&self, anchors: &Anchors) -> Asked {
        let names: Vec<String> = self.settings.names.iter().map(|name| format!("{name}\n")).collect();
        let mode = match self.settings.mode {
            ClientCertificateMode::Request => &b"request\n"[..],
            ClientCertificateMode::Require => b"require\n",
        };
        Asked(digest(
            [anchors.digest().as_slice(), mode].into_iter().chain(names.iter().map(String::as_bytes)),
        ))
    }
}

impl ClientFault {
    /// What rustls says of a client's certificate.
    pub(super) fn of(error: &Error) -> Self {
        use CertificateError as Fault;
        let Error::InvalidCertificate(fault) = error else { return Self::Malformed };
        match fault {
            Fault::Expired | Fault::ExpiredContext { .. } => Self::Expired,
            Fault::NotValidYet | Fault::NotValidYetContext { .. } => Self::NotYetValid,
            Fault::Revoked => Self::Revoked,
            Fault::UnknownIssuer => Self::UnknownAuthority,
            Fault::UnknownRevocationStatus => Self::RevocationUnknown,
            Fault::ExpiredRevocationList | Fault::ExpiredRevocationListContext { .. } => {
                Self::OldRevocationList
            }
            Fault::ApplicationVerificationFailure => Self::Name,
            Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. } => Self::Purpose,
            // What `openssl req -x509` makes unless told otherwise: the certificate of a CA, used as a client's own.
            Fault::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => Self::Purpose,
            Fault::BadSignature
            | Fault::UnsupportedSignatureAlgorithmContext { .. }
            | Fault::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => Self::Signature,
            _ => Self::Malformed,
        }
    }
}

/// Decides about certificates: those of our CAs that are not revoked and have one of the names.
struct Verifier {
    anchors: Arc<Anchors>,
    mode: ClientCertificateMode,
    names: Vec<NamePattern>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("mode", &self.mode)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mode == ClientCertificateMode::Require
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.anchors.hints()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.anchors.verifier()?.verify_client_cert(leaf, rest, now)?;
        if self.names.is_empty() {
            return Ok(verified);
        }
        let names = identity::names(leaf).map_err(|_| CertificateError::BadEncoding)?;
        match self.names.iter().any(|pattern| pattern.matches(&names)) {
            true => Ok(verified),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}
