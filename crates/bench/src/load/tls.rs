//! TLS: how clients of every load speak it, handshakes for their own sake, and HTTPS requests.
//!
//! All servers are asked for the same: one group, AES-128-GCM, one version. What one of them would choose by itself is
//! not what is compared.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption as Sessions, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, HandshakeKind, NamedGroup, SignatureScheme,
    version,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{self, JoinSet};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Gauge, Phase, http};
use crate::address::Address;
use crate::target::TlsVersion;

/// How a client speaks TLS.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    /// The only certificate that it accepts (PEM).
    pub certificate: PathBuf,
    /// The only version that it offers.
    pub version: TlsVersion,
    /// Whether it resumes sessions.
    pub resumption: Resumption,
    /// The only group for the key exchange that it accepts.
    pub group: Curve,
}

/// Groups for the key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Curve {
    /// X25519, which everything that is maintained prefers, or did before it learned the hybrid groups.
    X25519,
    /// P-256, for programs that know no other.
    P256,
}

/// Whether a client resumes sessions. Servers always let it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumption {
    /// Each handshake is a full one.
    Never,
    /// Each handshake resumes the session of the one before.
    Always,
}

/// Handshakes: connect, shake hands, close in good order. A unit is all of that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Where the server is.
    pub server: Address,
    /// How.
    pub client: Client,
    /// Connections at once.
    pub connections: usize,
}

/// HTTP requests over TLS.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Requests {
    /// The requests.
    pub requests: http::Load,
    /// How.
    pub client: Client,
}

impl Requests {
    /// Starts its connections as tasks of this thread; they go on until the gauge's window is over.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        self.requests.start_over(gauge, Some(self.client.connector()?)).await
    }
}

impl Client {
    /// What makes connections; sessions are resumed among those of one connector.
    pub fn connector(&self) -> io::Result<Connector> {
        let certificate = CertificateDer::from_pem_file(&self.certificate).map_err(io::Error::other)?;
        let kx_groups = match (self.group, self.version) {
            (Curve::P256, _) => vec![kx_group::SECP256R1],
            (Curve::X25519, TlsVersion::V13) => vec![kx_group::X25519],
            // In TLS 1.2 the list is that of certificates' curves too (RFC 8422, section 5.1).
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

/// Makes connections.
pub struct Connector {
    tls: TlsConnector,
    tickets: Arc<Tickets>,
    group: NamedGroup,
}

impl Connector {
    /// Connects and shakes hands.
    pub async fn connect(&self, server: &Address) -> io::Result<TlsStream<TcpStream>> {
        let Address::Tcp(address) = server else {
            return Err(io::Error::other(format!("no TLS over {server}")));
        };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let stream = self.tls.connect(name, stream).await?;
        // Sessions of TLS 1.2 are resumed without a key exchange.
        match stream.get_ref().1.negotiated_key_exchange_group() {
            Some(group) if group.name() != self.group => {
                Err(io::Error::other(format!("the server chose the group {:?}", group.name())))
            }
            _ => Ok(stream),
        }
    }
}

/// The name that clients ask for and that the run's certificates have.
pub const NAME: &str = "bench.test";

impl Load {
    /// Starts its connections as tasks of this thread; they go on until the gauge's window is over.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let mut firsts = JoinSet::new();
        for _ in 0..self.connections {
            let worker = Worker { server: self.server.clone(), connector: self.client.connector()? };
            // The first one is full and gets a session to resume.
            firsts.spawn_local(async move { worker.shake_hands().await.map(|_| worker) });
        }
        let expected = match self.client.resumption {
            Resumption::Never => HandshakeKind::Full,
            Resumption::Always => HandshakeKind::Resumed,
        };
        let mut workers = Vec::new();
        while let Some(first) = firsts.join_next().await {
            workers.push(first.map_err(io::Error::other)??);
        }
        for worker in workers {
            let gauge = gauge.clone();
            task::spawn_local(async move { worker.repeat(expected, &gauge).await });
        }
        Ok(())
    }
}

/// Shakes hands again and again; its sessions are its own.
struct Worker {
    server: Address,
    connector: Connector,
}

impl Worker {
    async fn repeat(&self, expected: HandshakeKind, gauge: &Gauge) {
        while gauge.phase() != Phase::Over {
            let start = Instant::now();
            match self.shake_hands().await {
                Ok(kind) if kind == expected => gauge.unit(start, Instant::now()),
                Ok(kind) => gauge.error(format!("a handshake was {kind:?} and not {expected:?}")),
                Err(error) => {
                    gauge.error(error);
                    // A server that refuses everybody must not be asked a million times a second.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    /// One handshake, and a sign that the server has finished it too.
    async fn shake_hands(&self) -> io::Result<HandshakeKind> {
        let tickets = self.connector.tickets.arrived.load(Ordering::Relaxed);
        let mut stream = self.connector.connect(&self.server).await?;
        let (_, connection) = stream.get_ref();
        let kind = connection.handshake_kind().ok_or_else(|| io::Error::other("no handshake was made"))?;
        if kind == HandshakeKind::FullWithHelloRetryRequest {
            return Err(io::Error::other("the server wants another group"));
        }
        // The server has the last word in TLS 1.2 only. In 1.3 this client is done before the server has looked at
        // its last message, and would leave the server's part out of the account if it went away now.
        let last_word = connection.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_2);
        let end = close(&mut stream).await;
        let confirmed = last_word || self.connector.tickets.arrived.load(Ordering::Relaxed) > tickets;
        match end {
            Err(error) if error.kind() == ErrorKind::ConnectionReset && confirmed => Ok(kind),
            Err(error) => Err(error),
            Ok(()) => Ok(kind),
        }
    }
}

/// Says that nothing follows and waits until the server says so too.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut TlsStream<S>) -> io::Result<()> {
    stream.shutdown().await?;
    // A server may say that this was no request.
    let mut rest = [0; 512];
    loop {
        match stream.read(&mut rest).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // A server that closes without saying so inside TLS.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Sessions to resume; and how many arrived, kept or not.
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

/// Accepts one certificate, and only from a server that has its key. Looking for a chain would cost time on the
/// load's core and tell nothing about a server.
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

#[cfg(test)]
mod tests;
