//! TLS settings of the clients of every load.
//!
//! All servers get the same offer: one group, AES-128-GCM, one version. A server's own preferences are not compared.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption as Sessions, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, NamedGroup, SignatureScheme, version};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::address::Address;
use crate::target::front::TlsVersion;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    /// The only accepted certificate (PEM).
    pub certificate: PathBuf,
    /// The only offered version.
    pub version: TlsVersion,
    pub resumption: Resumption,
    /// The only accepted key exchange group.
    pub group: Curve,
}

/// Key exchange groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Curve {
    /// X25519, which every maintained program preferred before it supported hybrid groups.
    X25519,
    /// P-256, for programs that support no other group.
    P256,
}

/// Whether the client resumes sessions. Servers always allow resumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumption {
    /// No session is resumed: every handshake is a full one.
    Never,
    /// Every handshake resumes the previous session.
    Always,
}

impl Client {
    /// Makes a connector. Sessions are resumed only within one connector.
    pub fn connector(&self) -> io::Result<Connector> {
        let certificate = CertificateDer::from_pem_file(&self.certificate).map_err(io::Error::other)?;
        let kx_groups = match (self.group, self.version) {
            (Curve::P256, _) => vec![kx_group::SECP256R1],
            (Curve::X25519, TlsVersion::V13) => vec![kx_group::X25519],
            // In TLS 1.2 the list also restricts the curves of certificates (RFC 8422, section 5.1).
            (Curve::X25519, TlsVersion::V12) => vec![kx_group::X25519, kx_group::SECP256R1],
        };
        let provider = Arc::new(CryptoProvider {
            kx_groups,
            cipher_suites: vec![
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            ],
            ..aws_lc_rs::default_provider()
        });
        let version = match self.version {
            TlsVersion::V12 => &version::TLS12,
            TlsVersion::V13 => &version::TLS13,
        };
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { certificate, provider }))
            .with_no_client_auth();
        let kept = match self.resumption {
            Resumption::Never => None,
            Resumption::Always => Some(ClientSessionMemoryCache::new(32)),
        };
        let tickets = Arc::new(Tickets { kept, arrived: AtomicU64::new(0) });
        config.resumption = Sessions::store(tickets.clone());
        let group = match self.group {
            Curve::X25519 => NamedGroup::X25519,
            Curve::P256 => NamedGroup::secp256r1,
        };
        Ok(Connector { tls: TlsConnector::from(Arc::new(config)), tickets, group })
    }
}

pub struct Connector {
    tls: TlsConnector,
    tickets: Arc<Tickets>,
    group: NamedGroup,
}

impl Connector {
    /// Number of session tickets received.
    pub(super) fn tickets(&self) -> u64 {
        self.tickets.arrived.load(Ordering::Relaxed)
    }

    /// Opens a TCP connection and completes the TLS handshake.
    pub async fn connect(&self, server: &Address) -> io::Result<TlsStream<TcpStream>> {
        let Address::Tcp(address) = server else {
            return Err(io::Error::other(format!("no TLS over {server}")));
        };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let stream = self.tls.connect(name, stream).await?;
        // In TLS 1.2, a resumed session has no key exchange.
        match stream.get_ref().1.negotiated_key_exchange_group() {
            Some(group) if group.name() != self.group => {
                Err(io::Error::other(format!("the server chose the group {:?}", group.name())))
            }
            _ => Ok(stream),
        }
    }
}

/// Server name in the clients' SNI and in the run's certificates.
pub const NAME: &str = "bench.test";

/// Store of sessions for resumption, with the number of received tickets.
#[derive(Debug)]
struct Tickets {
    kept: Option<ClientSessionMemoryCache>,
    arrived: AtomicU64,
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        if let Some(kept) = &self.kept {
            kept.set_tls12_session(name, value);
        }
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.kept.as_ref()?.tls12_session(name)
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        if let Some(kept) = &self.kept {
            kept.remove_tls12_session(name);
        }
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        if let Some(kept) = &self.kept {
            kept.insert_tls13_ticket(name, value);
        }
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.kept.as_ref()?.take_tls13_ticket(name)
    }
}

/// Verifier that accepts one certificate and checks that the server has its key. A chain would only cost CPU time.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *end_entity == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
