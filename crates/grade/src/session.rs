//! Complete handshakes like a browser's: certificates of TLS 1.3, resumption, ALPN, and a request for `/`.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, SignatureScheme, Stream,
    SupportedProtocolVersion, version,
};

use crate::ask::Asker;
use crate::hsts;
use crate::observed::{Feature, Hsts};
use crate::reply::Shown;
use crate::wire::Wire;

/// Results of the complete handshakes.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    pub(crate) shown: Vec<Shown>,
    pub(crate) post_quantum: Feature,
    pub(crate) resumption_tls13: Feature,
    pub(crate) resumption_tls12: Feature,
    pub(crate) alpn: Vec<String>,
    pub(crate) hsts: Hsts,
}

/// Makes the handshakes. `name` is the server name.
pub(crate) fn meet(asker: &Asker, name: &ServerName<'static>, host: &str) -> Sessions {
    let met = |plan: Plan<'_>| TestClient::new(asker, name, plan).once();
    let mut shown: Vec<Shown> = Vec::new();
    for schemes in [ECDSA, RSA] {
        let plan = Plan { schemes, ..Plan::default() };
        if let Some(met) = met(plan)
            && !met.shown.chain.is_empty()
            && !shown.iter().any(|known| known.chain == met.shown.chain)
        {
            shown.push(met.shown);
        }
    }
    let hybrid: &[&dyn SupportedKxGroup] =
        &[kx_group::X25519MLKEM768, kx_group::SECP256R1MLKEM768, kx_group::MLKEM768];
    let post_quantum = met(Plan { groups: Some(hybrid), versions: &[&version::TLS13], ..Plan::default() });
    let mut alpn = Vec::new();
    for protocol in ["h2", "http/1.1"] {
        let plan = Plan { alpn: Some(protocol), ..Plan::default() };
        if met(plan).is_some_and(|met| met.alpn.as_deref() == Some(protocol.as_bytes())) {
            alpn.push(protocol.to_owned());
        }
    }
    let resumes = |versions| {
        let meeting = TestClient::new(asker, name, Plan { versions, ..Plan::default() });
        match (meeting.ask_for_root(host), meeting.once()) {
            (Some(_), Some(met)) => Feature::of(met.resumed),
            _ => Feature::Unknown,
        }
    };
    let answer = TestClient::new(asker, name, Plan { alpn: Some("http/1.1"), ..Plan::default() })
        .ask_for_root(host)
        .or_else(|| TestClient::new(asker, name, Plan::default()).ask_for_root(host));
    Sessions {
        shown,
        post_quantum: Feature::of(post_quantum.is_some()),
        resumption_tls13: resumes(&[&version::TLS13]),
        resumption_tls12: resumes(&[&version::TLS12]),
        alpn,
        hsts: match answer {
            Some(Ok(head)) => hsts::find(&head),
            Some(Err(why)) => Hsts::Unknown(why),
            None => Hsts::Unknown("no handshake of TLS 1.2 or 1.3 was possible".to_owned()),
        },
    }
}

/// Offers of the client in a handshake.
#[derive(Clone, Copy)]
struct Plan<'a> {
    schemes: &'static [SignatureScheme],
    groups: Option<&'a [&'static dyn SupportedKxGroup]>,
    versions: &'a [&'static SupportedProtocolVersion],
    alpn: Option<&'static str>,
}

impl Default for Plan<'_> {
    fn default() -> Self {
        Self { schemes: ALL, groups: None, versions: rustls::ALL_VERSIONS, alpn: None }
    }
}

/// Result of a handshake.
struct Met {
    shown: Shown,
    alpn: Option<Vec<u8>>,
    resumed: bool,
}

/// A client that may connect more than once, to test resumption.
struct TestClient<'a> {
    asker: &'a Asker,
    name: ServerName<'static>,
    config: Option<Arc<ClientConfig>>,
    seen: Arc<Seen>,
}

impl<'a> TestClient<'a> {
    fn new(asker: &'a Asker, name: &ServerName<'static>, plan: Plan<'_>) -> Self {
        let mut provider = aws_lc_rs::default_provider();
        match plan.groups {
            Some(groups) => provider.kx_groups = groups.to_vec(),
            // The group is off by default in every provider, so it is added here.
            None => provider.kx_groups.push(kx_group::SECP256R1MLKEM768),
        }
        let seen = Arc::new(Seen { schemes: plan.schemes, staple: Mutex::default() });
        let config = client(provider, plan, seen.clone()).ok().map(Arc::new);
        Self { asker, name: name.clone(), config, seen }
    }

    fn connection(&self) -> Option<(ClientConnection, Wire)> {
        let connection = ClientConnection::new(self.config.clone()?, self.name.clone()).ok()?;
        Some((connection, self.asker.connect().ok()?))
    }

    /// Makes one handshake. `None` if it failed.
    fn once(&self) -> Option<Met> {
        let (mut connection, mut wire) = self.connection()?;
        while connection.is_handshaking() {
            connection.complete_io(&mut wire).ok()?;
        }
        let chain = connection.peer_certificates().unwrap_or_default();
        let met = Met {
            shown: Shown {
                chain: chain.iter().map(|certificate| certificate.to_vec()).collect(),
                staple: self.seen.staple.lock().unwrap_or_else(PoisonError::into_inner).take(),
            },
            alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        };
        connection.send_close_notify();
        let _ = connection.write_tls(&mut wire);
        Some(met)
    }

    /// Requests `/` by HTTP/1.1 and returns the head of the response. `None` if the handshake failed.
    fn ask_for_root(&self, host: &str) -> Option<Result<Vec<u8>, String>> {
        let (mut connection, mut wire) = self.connection()?;
        while connection.is_handshaking() {
            connection.complete_io(&mut wire).ok()?;
        }
        let mut stream = Stream::new(&mut connection, &mut wire);
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: penstock-tls-grade\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        if let Err(error) = stream.write_all(request.as_bytes()) {
            return Some(Err(format!("cannot send the request to the server: {error}")));
        }
        Some(read_head(&mut stream))
    }
}

/// Reads up to the end of the head, or up to [`MAX_HEAD`].
fn read_head(stream: &mut impl Read) -> Result<Vec<u8>, String> {
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while head.len() < MAX_HEAD {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => head.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) if head.is_empty() => return Err("it gave no answer to an HTTP request".to_owned()),
            Err(_) => break,
        }
        if head.windows(4).any(|window| window == b"\r\n\r\n") {
            return Ok(head);
        }
        if !b"HTTP/".starts_with(&head[..head.len().min(5)]) {
            break;
        }
    }
    Err("what it answered is not HTTP/1.1".to_owned())
}

fn client(provider: CryptoProvider, plan: Plan<'_>, seen: Arc<Seen>) -> Result<ClientConfig, Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(plan.versions)?
        .dangerous()
        .with_custom_certificate_verifier(seen)
        .with_no_client_auth();
    config.alpn_protocols = plan.alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    config.resumption = Resumption::in_memory_sessions(4);
    Ok(config)
}

/// Verifier that accepts and records every certificate; `trust.rs` judges them.
#[derive(Debug)]
struct Seen {
    schemes: &'static [SignatureScheme],
    staple: Mutex<Option<Vec<u8>>>,
}

impl ServerCertVerifier for Seen {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        staple: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let staple = (!staple.is_empty()).then(|| staple.to_vec());
        *self.staple.lock().unwrap_or_else(PoisonError::into_inner) = staple;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.to_vec()
    }
}

const ECDSA: &[SignatureScheme] = &[
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::ED448,
];

const RSA: &[SignatureScheme] = &[
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

const ALL: &[SignatureScheme] = &[
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

/// Upper bound of a response head in bytes.
const MAX_HEAD: usize = 64 * 1024;
