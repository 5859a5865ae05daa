//! TLS clients that accept any certificate and report it.

use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::{Server, secs, tools};

/// Output of `openssl s_client` for the listener `secure`, from both streams.
pub fn s_client(server: &Server, arguments: &[&str]) -> String {
    let address = server.address("secure");
    let mut all = vec!["s_client", "-connect", &address];
    all.extend(arguments);
    let output = tools::run("openssl", &all, secs(20));
    [output.stdout, output.stderr].iter().map(|bytes| String::from_utf8_lossy(bytes)).collect()
}

/// The leaf certificate for a name at the listener `secure`, as DER; `None` without a handshake.
pub fn served(server: &Server, name: &str) -> Option<Vec<u8>> {
    let text = s_client(server, &["-servername", name]);
    CertificateDer::from_pem_slice(text.as_bytes()).ok().map(|leaf| leaf.to_vec())
}

/// Results of a handshake.
pub struct Seen {
    pub leaf: Vec<u8>,
    /// The OCSP response; empty if there is none.
    pub staple: Vec<u8>,
    /// Group of the key exchange.
    pub group: String,
}

/// Makes one handshake with rustls without resumption. It verifies that the server has the certificate's private key.
pub fn handshake(address: &str, name: &str) -> Result<Seen, String> {
    let seen = Arc::new(Witness::default());
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(seen.clone())
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    let host = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), host).unwrap();
    let mut socket = TcpStream::connect(address).map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(secs(10))).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).map_err(|error| error.to_string())?;
    }
    let (leaf, staple) = seen.0.lock().unwrap().clone();
    let group = connection.negotiated_key_exchange_group().map(|group| format!("{:?}", group.name()));
    Ok(Seen { leaf, staple, group: group.unwrap_or_default() })
}

/// Accepts any certificate, and stores the certificate and the OCSP response.
#[derive(Debug, Default)]
struct Witness(Mutex<(Vec<u8>, Vec<u8>)>);

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        staple: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = (leaf.to_vec(), staple.to_vec());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &provider().signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}
