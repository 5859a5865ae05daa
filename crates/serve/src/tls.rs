//! TLS of a listener: a directory of certificates, chosen by name, on rustls and aws-lc-rs.
//! `NAME.pem` holds certificate chain and key; or `NAME.crt` the chain and `NAME.key` the key. A broken pair never stops
//! the others. Everything about depth (client certificates, OCSP, tickets shared by machines) starts here.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::types::{Http2, Protocol};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{ClientHello, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::AsyncWriteExt;

use crate::file;
use crate::outcome::{Ending, Spoken, TlsFault};
use crate::stream::{Plain, Stream};

mod names;
mod replay;

/// A certificate file larger than this is not one.
const FILE_LIMIT: u64 = 1024 * 1024;

/// HTTP/2 over TLS in ALPN (RFC 9113 section 3.2).
const H2: &[u8] = b"h2";

/// What all TLS listeners share over reloads: tickets given out before stay good.
pub struct Shared {
    provider: Arc<CryptoProvider>,
    tickets: Option<Arc<dyn ProducesTickets>>,
}

impl Default for Shared {
    fn default() -> Self {
        // Without randomness for ticket keys, sessions are not resumed; everything else works.
        Self { provider: Arc::new(aws_lc_rs::default_provider()), tickets: aws_lc_rs::Ticketer::new().ok() }
    }
}

/// One listener's TLS.
#[derive(Clone)]
pub struct Terminator {
    config: Arc<ServerConfig>,
    handshake_timeout: Duration,
}

impl Terminator {
    /// TLS with what was loaded.
    pub fn new(loaded: Loaded, handshake_timeout: Duration, protocol: &Protocol, shared: &Shared) -> Self {
        let builder = ServerConfig::builder_with_provider(shared.provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider has the suites of TLS 1.2 and 1.3");
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(loaded.certificates));
        if let Some(tickets) = &shared.tickets {
            config.ticketer = tickets.clone();
        }
        if let Protocol::Http(settings) = protocol {
            let http2 = matches!(settings.http2, Http2::On { .. }).then(|| H2.to_vec());
            config.alpn_protocols = http2.into_iter().chain([b"http/1.1".to_vec()]).collect();
        }
        Self { config: Arc::new(config), handshake_timeout }
    }
}

/// A finished handshake.
pub struct Handshake {
    /// The encrypted connection.
    pub stream: Stream,
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// What both agreed to speak.
    pub spoken: Spoken,
}

/// Makes the handshake. `early` are bytes of it that were read with a PROXY header.
pub async fn accept(terminator: &Terminator, plain: Plain, early: Vec<u8>) -> Result<Handshake, Ending> {
    let acceptor = tokio_rustls::TlsAcceptor::from(terminator.config.clone());
    let accepting = async {
        let first = match early.first() {
            Some(first) => Some(*first),
            None => first_byte(&plain).await,
        };
        match first {
            Some(first) if first.is_ascii_uppercase() => Err(answer_plain_http(plain).await),
            _ => {
                let accepting = acceptor.accept_with(plain, |connection| replay::feed(connection, &early));
                accepting.await.map_err(|error| fault_of(&error))
            }
        }
    };
    match tokio::time::timeout(terminator.handshake_timeout, accepting).await {
        Ok(Ok(tls)) => {
            let version = match tls.get_ref().1.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            };
            let spoken = match tls.get_ref().1.alpn_protocol() {
                Some(H2) => Spoken::Http2,
                _ => Spoken::Http1,
            };
            Ok(Handshake { stream: Stream::tls(tls), version, spoken })
        }
        Ok(Err(fault)) => Err(Ending::TlsFailed(fault)),
        Err(_) => Err(Ending::TlsTimeout),
    }
}

/// What the client says first, left where it is. `None` if that cannot be seen without taking it.
async fn first_byte(plain: &Plain) -> Option<u8> {
    let Plain::Tcp(tcp) = plain else { return None };
    let mut byte = [0];
    match tcp.peek(&mut byte).await {
        Ok(1) => Some(byte[0]),
        _ => None,
    }
}

/// A person with `http://` in front of a TLS port gets an answer that can be read.
async fn answer_plain_http(mut plain: Plain) -> TlsFault {
    let mut page = Vec::new();
    logic::http1::error_page::write(
        &mut page,
        &logic::http1::error_page::Page {
            status: 400,
            detail: "This port speaks HTTPS, and the request came in plain HTTP.",
            request_id: "",
            accept: None,
            persistence: logic::http1::request::Persistence::Close,
            method: logic::http1::request::MethodKind::Other,
            extra: &[],
            hsts: None,
        },
    );
    // The client may be gone; there is nobody else to tell.
    let _ = plain.write_all(&page).await;
    let stream = Stream::plain(plain);
    crate::http::linger(&stream).await;
    TlsFault::NotTls
}

fn fault_of(error: &io::Error) -> TlsFault {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => TlsFault::NotTls,
        Some(rustls::Error::PeerIncompatible(_)) => TlsFault::Incompatible,
        Some(rustls::Error::AlertReceived(_)) => TlsFault::Alert,
        // rustls has no variant of its own for a resolver that found nothing.
        Some(rustls::Error::General(why)) if why.contains("certificate") => TlsFault::NoCertificate,
        Some(_) => TlsFault::Protocol,
        None => TlsFault::Closed,
    }
}

/// What a certificate directory holds.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The good pairs.
    pub certificates: Certificates,
    /// What is wrong with the others.
    pub faults: Vec<CertificateFault>,
}

/// Certificates by the names they are for.
#[derive(Debug, Default)]
pub struct Certificates {
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// `*.example.com` under `example.com`.
    wildcard: HashMap<String, Arc<CertifiedKey>>,
    /// For clients that name no host: `default.pem`, or the only certificate there is.
    nameless: Option<Arc<CertifiedKey>>,
    /// For clients that name a host we do not have: `default.pem`.
    default: Option<Arc<CertifiedKey>>,
}

impl Certificates {
    /// Whether no client at all could be served.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wildcard.is_empty() && self.nameless.is_none()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Some(name) = hello.server_name() else { return self.nameless.clone() };
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let by_wildcard = || name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        self.exact.get(name).or_else(by_wildcard).or(self.default.as_ref()).cloned()
    }
}

/// One file that cannot be used, and what to do about it.
#[derive(Debug)]
pub struct CertificateFault {
    /// The file, or the directory.
    pub path: PathBuf,
    /// What is wrong.
    pub kind: CertificateFaultKind,
}

/// What is wrong with a certificate file.
#[derive(Debug)]
pub enum CertificateFaultKind {
    /// It cannot be read.
    Unreadable(io::Error),
    /// It is far too large.
    TooLarge,
    /// Others than owner and group can read the key.
    KeyReadableByOthers(u32),
    /// `NAME.crt` without `NAME.key`.
    NoKey,
    /// `NAME.key` without `NAME.crt`.
    NoCertificate,
    /// No certificate in it.
    HoldsNoCertificate,
    /// No private key in it.
    HoldsNoKey,
    /// It is not what its name says.
    Malformed(String),
    /// Key and certificate do not belong together.
    Mismatch,
    /// The certificate is for no name.
    NoNames,
    /// Another certificate is for one of its names, and is used for it.
    NameTaken {
        /// The first such name.
        name: String,
        /// The file of the other.
        by: PathBuf,
    },
    /// The directory holds nothing usable: no client can connect.
    Empty,
}

impl fmt::Display for CertificateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.kind {
            CertificateFaultKind::Unreadable(error) => {
                write!(
                    f,
                    "{path}: cannot be read: {error}; the user that penstock runs as must be able to read it"
                )
            }
            CertificateFaultKind::TooLarge => {
                write!(f, "{path}: more than {FILE_LIMIT} bytes are too many for a certificate")
            }
            CertificateFaultKind::KeyReadableByOthers(mode) => write!(
                f,
                "{path}: others can read this private key (mode {mode:04o}); it is refused until `chmod o= {path}`"
            ),
            CertificateFaultKind::NoKey => write!(f, "{path}: its key is missing; put it beside it as .key"),
            CertificateFaultKind::NoCertificate => {
                write!(f, "{path}: its certificate is missing; put it beside it as .crt")
            }
            CertificateFaultKind::HoldsNoCertificate => {
                write!(f, "{path}: holds no certificate (BEGIN CERTIFICATE)")
            }
            CertificateFaultKind::HoldsNoKey => write!(f, "{path}: holds no private key (BEGIN PRIVATE KEY)"),
            CertificateFaultKind::Malformed(why) => write!(f, "{path}: cannot be understood: {why}"),
            CertificateFaultKind::Mismatch => write!(f, "{path}: key and certificate do not belong together"),
            CertificateFaultKind::NoNames => {
                write!(f, "{path}: the certificate names no DNS host (subjectAltName)")
            }
            CertificateFaultKind::NameTaken { name, by } => write!(
                f,
                "{path}: is for {name}, and so is {}, which is used for it; take one of them away",
                by.display()
            ),
            CertificateFaultKind::Empty => {
                write!(f, "{path}: no usable certificate: put NAME.pem, or NAME.crt and NAME.key, there")
            }
        }
    }
}

/// Loads every certificate of a directory. Reads files, changes nothing.
pub fn load(directory: &Path) -> Loaded {
    let mut loaded = Loaded::default();
    let fault = |path: &Path, kind| CertificateFault { path: path.to_owned(), kind };
    let entries = match std::fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) => {
            loaded.faults.push(fault(directory, CertificateFaultKind::Unreadable(error)));
            return loaded;
        }
    };
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    let mut usable: Vec<(&PathBuf, Arc<CertifiedKey>)> = Vec::new();
    for path in &paths {
        let pair = match path.extension().and_then(|extension| extension.to_str()) {
            Some("pem") => load_pair(path, path),
            Some("crt") => load_pair(path, &path.with_extension("key")),
            Some("key") if !path.with_extension("crt").exists() => {
                Err(fault(path, CertificateFaultKind::NoCertificate))
            }
            _ => continue,
        };
        match pair {
            Ok(pair) => usable.push((path, pair)),
            Err(fault) => loaded.faults.push(fault),
        }
    }
    for (path, pair) in &usable {
        let is_default = path.file_stem().is_some_and(|stem| stem == "default");
        if is_default {
            loaded.certificates.default = Some(pair.clone());
        }
        match names::of(&pair.cert[0]) {
            Ok(names) if names.is_empty() && !is_default => {
                loaded.faults.push(fault(path, CertificateFaultKind::NoNames));
            }
            Ok(names) => {
                let taken = names.into_iter().find_map(|name| {
                    let before = add(&mut loaded.certificates, &name, pair)?;
                    let (by, _) = usable.iter().find(|(_, other)| Arc::ptr_eq(other, &before))?;
                    Some(CertificateFaultKind::NameTaken { name, by: PathBuf::clone(by) })
                });
                loaded.faults.extend(taken.map(|kind| fault(path, kind)));
            }
            Err(why) => loaded.faults.push(fault(path, CertificateFaultKind::Malformed(why))),
        }
    }
    loaded.certificates.nameless = match (&loaded.certificates.default, &usable[..]) {
        (Some(default), _) => Some(default.clone()),
        (None, [(_, only)]) => Some(only.clone()),
        _ => None,
    };
    if usable.is_empty() {
        loaded.faults.push(fault(directory, CertificateFaultKind::Empty));
    }
    loaded
}

/// Enters a certificate for a name. Gives back another one that is for the same name and was first.
fn add(certificates: &mut Certificates, name: &str, pair: &Arc<CertifiedKey>) -> Option<Arc<CertifiedKey>> {
    let (map, name) = match name.strip_prefix("*.") {
        Some(parent) => (&mut certificates.wildcard, parent),
        None => (&mut certificates.exact, name),
    };
    let first = map.entry(name.to_owned()).or_insert_with(|| pair.clone());
    // The same certificate under two file names, such as a link named default.pem, is no fault.
    (first.cert.first() != pair.cert.first()).then(|| first.clone())
}

fn load_pair(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, CertificateFault> {
    let fault = |path: &Path, kind| CertificateFault { path: path.to_owned(), kind };
    if !key.exists() {
        return Err(fault(certificate, CertificateFaultKind::NoKey));
    }
    let mode = std::fs::metadata(key)
        .map_err(|error| fault(key, CertificateFaultKind::Unreadable(error)))?
        .permissions()
        .mode();
    if mode & 0o007 != 0 {
        return Err(fault(key, CertificateFaultKind::KeyReadableByOthers(mode & 0o7777)));
    }
    let chain_text = read(certificate)?;
    let key_text = if key == certificate { chain_text.clone() } else { read(key)? };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&chain_text)
        .collect::<Result<_, _>>()
        .map_err(|error| fault(certificate, CertificateFaultKind::Malformed(error.to_string())))?;
    if chain.is_empty() {
        return Err(fault(certificate, CertificateFaultKind::HoldsNoCertificate));
    }
    let private = PrivateKeyDer::from_pem_slice(&key_text).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => fault(key, CertificateFaultKind::HoldsNoKey),
        error => fault(key, CertificateFaultKind::Malformed(error.to_string())),
    })?;
    let signing = aws_lc_rs::sign::any_supported_type(&private)
        .map_err(|error| fault(key, CertificateFaultKind::Malformed(error.to_string())))?;
    let pair = CertifiedKey::new(chain, signing);
    match pair.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(Arc::new(pair))
        }
        Err(rustls::Error::InconsistentKeys(_)) => Err(fault(key, CertificateFaultKind::Mismatch)),
        Err(error) => Err(fault(certificate, CertificateFaultKind::Malformed(error.to_string()))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateFault> {
    let fault = |kind| CertificateFault { path: path.to_owned(), kind };
    let bytes =
        file::read(path, FILE_LIMIT).map_err(|error| fault(CertificateFaultKind::Unreadable(error)))?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(fault(CertificateFaultKind::TooLarge));
    }
    Ok(bytes)
}
