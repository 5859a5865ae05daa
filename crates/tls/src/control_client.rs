//! The client's end of control over the network: TLS on a blocking socket, with what a log-in can be bound to.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use config::types::{Identity, Verify};
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

use super::backend::{Authorities, read_identity, verifier};
use super::fault::CertificateFault;

/// How a client knows the server, and what it shows of itself.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name that the certificate of the server must have.
    pub name: String,
    /// CAs of the server, or exactly its certificate; `None`: the CAs of the operating system.
    pub authority: Option<PathBuf>,
    /// Certificate and key of the client.
    pub identity: Option<Identity>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0} is no name of a server")]
    Name(String),
    #[error("the certificates of CAs cannot be used: {0}")]
    Authority(String),
    #[error("{0}")]
    Identity(CertificateFault),
    #[error("TLS with {name}: {}", words(.source))]
    Handshake { name: String, source: io::Error },
}

/// What went wrong in a handshake, where the words of the TLS library are those of its code.
fn words(error: &io::Error) -> String {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "no CA that is trusted here has signed the server's certificate".to_owned()
        }
        Some(InvalidCertificate(CertificateError::Other(other)))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            "the server's certificate is self-signed, or that of a CA, and it is not trusted here".to_owned()
        }
        Some(AlertReceived(AlertDescription::UnrecognisedName)) => {
            "the server has no certificate for this name, or none at all".to_owned()
        }
        Some(InvalidMessage(_)) => "what the server says is not TLS".to_owned(),
        _ => error.to_string(),
    }
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Connection(Box<StreamOwned<ClientConnection, TcpStream>>);

impl Connection {
    /// Performs the handshake. Timeouts are those of the socket.
    pub fn shake_hands(tcp: TcpStream, settings: &Settings) -> Result<Self, ConnectError> {
        let name = ServerName::try_from(settings.name.clone())
            .map_err(|_| ConnectError::Name(settings.name.clone()))?;
        let authorities = Authorities::default();
        let failed = |error: rustls::Error| ConnectError::Handshake {
            name: settings.name.clone(),
            source: io::Error::new(io::ErrorKind::InvalidData, error),
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verify = settings.authority.clone().map_or(Verify::System, Verify::File);
        let verifier = verifier::new(&verify, &authorities, &provider, &mut Vec::new())
            .map_err(ConnectError::Authority)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match &settings.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                // The server says whether it takes one that has expired.
                let certified = read_identity(identity, &mut Vec::new()).map_err(ConnectError::Identity)?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
        };
        let mut tls = ClientConnection::new(Arc::new(config), name).map_err(failed)?;
        let mut tcp = tcp;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)
                .map_err(|source| ConnectError::Handshake { name: settings.name.clone(), source })?;
        }
        Ok(Self(Box::new(StreamOwned::new(tls, tcp))))
    }

    /// Channel bindings of the type tls-exporter (RFC 9266), of TLS 1.3.
    pub fn exporter(&self) -> Option<[u8; 32]> {
        let tls = &self.0.conn;
        let is_new = tls.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3);
        let exported = tls.export_keying_material([0; 32], super::operator::LABEL, Some(b""));
        exported.ok().filter(|_| is_new)
    }

    pub fn tcp(&self) -> &TcpStream {
        &self.0.sock
    }
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Connection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
