//! Client certificates: which listeners ask for them, which clients are accepted, and which fields backends get.
//!
//! `trust.rs` holds the CAs and revocation lists in use, `identity.rs` reads a certificate's fields. A change of CAs or
//! lists makes a new rustls configuration for the next handshake, with its own ticket keys: an older session is not
//! resumed, so its client must send its certificate again.

use std::cell::Cell;
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
use state::ending::{ClientFault, TlsFault};

mod identity;
mod trust;

pub use identity::Identity;
pub(super) use trust::{Anchors, Trust, TrustSource};

use super::sha256::digest;
use super::tickets::Asked;

thread_local! {
    /// Subject of the certificate that this thread has refused last. rustls returns only the error, and no connection
    /// that could be asked for the certificate.
    static REFUSED: Cell<Option<Box<str>>> = const { Cell::new(None) };
}

/// Takes the subject of the certificate that this thread has refused in the current turn of its task.
pub(super) fn take_refused() -> Option<Box<str>> {
    REFUSED.take()
}

/// Client certificate settings of a listener.
pub(super) struct Clients {
    settings: ClientCertificates,
    trust: Arc<Trust>,
    ready: ArcSwapOption<Ready>,
}

/// rustls configuration of a listener, valid until the CAs or revocation lists change.
pub(super) struct Ready {
    anchors: Arc<Anchors>,
    verifier: Arc<Verifier>,
    pub(super) config: Arc<ServerConfig>,
}

impl Clients {
    /// Returns the CAs and revocation lists, which several listeners may share.
    pub(super) fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    pub(super) fn new(settings: &ClientCertificates, trust: Arc<Trust>) -> Self {
        Self { settings: settings.clone(), trust, ready: ArcSwapOption::empty() }
    }

    /// Returns the configuration for the next handshake. Calls `make` if the CAs or revocation lists have changed.
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

    /// Returns the identity of the client of a finished handshake. A resumed session is verified like a new one,
    /// because its certificate may have expired since.
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
            verified.map_err(|error| TlsFault::Client(fault(&error)))?;
        }
        match Identity::of(leaf, rest, &self.settings.headers) {
            Ok(identity) => Ok(Some(identity)),
            Err(_) => Err(TlsFault::Client(ClientFault::Malformed)),
        }
    }

    /// Returns a hash of everything that decides which clients are accepted: CAs, revocation lists, mode and names.
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

/// Converts rustls' error about a client's certificate.
pub(super) fn fault(error: &Error) -> ClientFault {
    use CertificateError as Fault;
    let Error::InvalidCertificate(fault) = error else { return ClientFault::Malformed };
    match fault {
        Fault::Expired | Fault::ExpiredContext { .. } => ClientFault::Expired,
        Fault::NotValidYet | Fault::NotValidYetContext { .. } => ClientFault::NotYetValid,
        Fault::Revoked => ClientFault::Revoked,
        Fault::UnknownIssuer => ClientFault::UnknownAuthority,
        Fault::UnknownRevocationStatus => ClientFault::CrlMissing,
        Fault::ExpiredRevocationList | Fault::ExpiredRevocationListContext { .. } => ClientFault::CrlExpired,
        Fault::ApplicationVerificationFailure => ClientFault::Name,
        Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. } => ClientFault::Purpose,
        // `openssl req -x509` makes a CA certificate by default; some clients use that as their own certificate.
        Fault::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => ClientFault::Purpose,
        Fault::BadSignature
        | Fault::UnsupportedSignatureAlgorithmContext { .. }
        | Fault::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => ClientFault::Signature,
        _ => ClientFault::Malformed,
    }
}

/// Verifier that accepts a certificate signed by a trusted CA, not revoked, and with one of the configured names.
struct Verifier {
    anchors: Arc<Anchors>,
    mode: ClientCertificateMode,
    names: Vec<NamePattern>,
}

impl Verifier {
    fn verify(
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
        self.anchors.authority_names()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verify(leaf, rest, now);
        if verified.is_err() {
            REFUSED.set(identity::subject(leaf));
        }
        verified
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
