//! Verifies a backend's certificate by the rules of webpki. Certificates that the configuration names are accepted,
//! too.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::types::Verify;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::super::facts::Facts;
use super::authorities::Authorities;

/// Returns the certificate verifier for the settings of a pool, or of a client of the control listener.
pub(crate) fn new(
    verify: &Verify,
    authorities: &Authorities,
    provider: &Arc<CryptoProvider>,
    notes: &mut Vec<String>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let trusted = match verify {
        Verify::System => authorities.system()?,
        Verify::File(path) => authorities.file(path)?,
        Verify::Off => return Ok(Arc::new(AnyBackend(provider.clone()))),
    };
    if let (Verify::File(path), 1..) = (verify, trusted.unusable) {
        notes.push(format!("{}: {} of its certificates cannot be used", path.display(), trusted.unusable));
    }
    let chain = WebPkiServerVerifier::builder_with_provider(trusted.roots.clone(), provider.clone())
        .build()
        .map_err(|error| format!("cannot verify backends: {error}"))?;
    Ok(Arc::new(Chain { chain, own: trusted.own.clone() }))
}

/// Verifier that accepts a certificate which a trusted CA signed, or which the configuration itself names.
#[derive(Debug)]
struct Chain {
    chain: Arc<WebPkiServerVerifier>,
    own: HashSet<CertificateDer<'static>>,
}

impl ServerCertVerifier for Chain {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // webpki requires a CA above every certificate; a self-signed one has none. A certificate named in the
        // configuration is trusted without a signature; its validity period and its names are checked all the same.
        if self.own.contains(end_entity) {
            expect_valid_at(end_entity, now)?;
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        self.chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

fn expect_valid_at(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let facts = Facts::of(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
    let unix = |at: SystemTime| {
        UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    };
    if time > facts.not_after {
        let not_after = unix(facts.not_after);
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    if time < facts.not_before {
        let not_before = unix(facts.not_before);
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    Ok(())
}

/// Verifier that accepts any certificate whose private key the backend has.
#[derive(Debug)]
struct AnyBackend(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyBackend {
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
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
