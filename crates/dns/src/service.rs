//! The certificates that a TLS service shows, of any issuer: TLSA records judge them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use access::keys::Owner;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use thiserror::Error as ThisError;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::starttls::{TlsStart, until_tls};
use crate::turns::Turns;

/// Time limit of one handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Reason why nothing was seen.
#[derive(Debug, ThisError)]
enum Unseen {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no handshake within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("\"{0}\" is not a server name")]
    Name(String),
    #[error("the handshake cannot be made: {0}")]
    Tls(#[from] Error),
}

/// Asks each address for its certificate. `start` is how TLS begins; `None`: as is usual at the port. A failure is told as what
/// is wrong.
pub async fn chains(
    host: &Owner,
    addresses: &[SocketAddr],
    start: Option<TlsStart>,
    turns: &dyn Turns,
) -> Vec<(SocketAddr, Result<Vec<Vec<u8>>, String>)> {
    let mut found = Vec::new();
    for address in addresses {
        let _turn = turns.turn().await;
        let start = start.map_or_else(|| TlsStart::of_port(address.port()), Ok);
        let chain = match start {
            Ok(start) => {
                let chain = chain(*address, &host.to_string(), start, HANDSHAKE_LIMIT).await;
                chain.map_err(|why| why.to_string())
            }
            Err(why) => Err(why),
        };
        found.push((*address, chain));
    }
    found
}

/// Makes a handshake and returns the chain, the certificate of the server first. The server has proved that it has the
/// key; nothing else of the certificates is judged.
///
/// # Errors
/// No handshake was possible in time.
async fn chain(
    address: SocketAddr,
    name: &str,
    start: TlsStart,
    limit: Duration,
) -> Result<Vec<Vec<u8>>, Unseen> {
    let name = ServerName::try_from(name.to_owned()).map_err(|_| Unseen::Name(name.to_owned()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Seen { provider }))
        .with_no_client_auth();
    let shaking_hands = async {
        let mut tcp = TcpStream::connect(address).await?;
        if let TlsStart::After(dialect) = start {
            until_tls(&mut tcp, dialect).await?;
        }
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await
    };
    let tls = tokio::time::timeout(limit, shaking_hands).await.map_err(|_| Unseen::TimedOut(limit))??;
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.iter().map(|certificate| certificate.to_vec()).collect())
}

/// Accepts every certificate of which the server has the key.
#[derive(Debug)]
struct Seen {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Seen {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
