//! TLS connections to backends: handshake and configuration. Traffic and health checks use the same code.
//! `backend/authorities.rs` loads the trusted CAs, `backend/verifier.rs` verifies a backend's certificate,
//! `backend/fault.rs` words the errors. A backend whose certificate cannot be verified gets no connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime};

use config::types::{BackendHttp, BackendTls, Identity, MinVersion, Verify};
use logic::health::Cause;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use state::State;
use state::events::Level;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::alpn::H2;
use super::facts::Facts;
use super::fault::{CertificateFault, CertificateFaultKind as Kind};
use super::{key, pem_file};
use crate::plain::{Ended, Plain};

mod authorities;
mod fault;
pub(super) mod verifier;

pub use authorities::Authorities;
use authorities::Trusted;

/// Number of TLS sessions remembered for each backend: rustls keeps 8 tickets for one server. A session takes a few KiB
/// at most.
const SESSIONS: usize = 8;

/// TLS settings of a pool, with the contents of their files at the time when they were read.
#[derive(Clone)]
pub struct PoolTls {
    /// rustls configuration of all handshakes of the pool, or the reason why no handshake is possible.
    base: Result<Arc<ClientConfig>, Arc<str>>,
    verifies: Verifies,
    /// Error in the files, if the files cannot be used.
    fault: Option<String>,
    /// Warnings about the files.
    notes: Vec<String>,
    /// What `base` was made of.
    content: Option<Arc<Content>>,
    news: News,
}

/// Whether there is anything to say that was not said of the settings before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    Some,
    None,
}

/// Settings and contents of their files, without private keys: a certificate has one.
#[derive(PartialEq, Eq)]
struct Content {
    settings: BackendTls,
    trusted: Option<Arc<Trusted>>,
    shown: Vec<CertificateDer<'static>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verifies {
    Yes,
    No,
}

impl PoolTls {
    /// Reads the files of a pool. If nothing has changed since `before`, its configuration is kept, with which open
    /// connections were made. If the files cannot be used, the contents of `before` are kept, unless `before` accepted any
    /// certificate.
    pub fn read(settings: &BackendTls, authorities: &Authorities, before: Option<&Self>) -> Self {
        let verifies = if settings.verify == Verify::Off { Verifies::No } else { Verifies::Yes };
        let why = match read(settings, authorities) {
            Ok(found) => return Self::of(found, verifies, before),
            Err(faults) => faults.join("; "),
        };
        let (notes, news) = (Vec::new(), News::Some);
        match before.filter(|before| before.verifies == Verifies::Yes && before.base.is_ok()) {
            Some(before) => {
                let fault = Some(format!("{why} (what was read before stays in use)"));
                let (base, content) = (before.base.clone(), before.content.clone());
                Self { base, verifies: Verifies::Yes, fault, notes, content, news }
            }
            None => {
                let base = Err(why.clone().into());
                Self { base, verifies, fault: Some(why), notes, content: None, news }
            }
        }
    }

    fn of(found: Found, verifies: Verifies, before: Option<&Self>) -> Self {
        let Found { config, notes, content } = found;
        let same = before.filter(|before| before.content.as_deref() == Some(&content));
        let news = match same {
            Some(before) if before.notes == notes => News::None,
            _ => News::Some,
        };
        let base = match same.map(|before| &before.base) {
            Some(Ok(base)) => base.clone(),
            _ => Arc::new(config),
        };
        Self { base: Ok(base), verifies, fault: None, notes, content: Some(Arc::new(content)), news }
    }

    /// The error in the files.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Reports the error in the files of pool `name`, or reports that there is none.
    pub fn announce(&self, name: &str, settings: &BackendTls, state: &State) {
        let subject = format!("pool.{name}.tls");
        if settings.verify == Verify::Off && self.news == News::Some {
            let message =
                "verify is off: an attacker on the path to the backends can read and change everything";
            state.events.record(Level::Warning, &subject, message);
        }
        for note in self.notes.iter().filter(|_| self.news == News::Some) {
            state.events.record(Level::Warning, &subject, note.as_str());
        }
        match &self.fault {
            None => state.restore(&subject),
            Some(fault) => state.degrade(&subject, fault),
        }
    }

    /// Returns the TLS settings of one backend, whose certificate must be valid for `name`. `http` selects the protocol
    /// for ALPN. `before` is what the backend had until now: it stays with its connections and sessions, if it is the same.
    pub fn endpoint(
        &self,
        name: &ServerName<'static>,
        http: BackendHttp,
        before: Option<&Arc<Endpoint>>,
    ) -> Arc<Endpoint> {
        let same_base = |before: &Endpoint| match (&before.base, &self.base) {
            (Some(before), Ok(base)) => Arc::ptr_eq(before, base),
            _ => false,
        };
        let same = |before: &&Arc<Endpoint>| before.name == *name && before.http == http && same_base(before);
        if let Some(before) = before.filter(same) {
            return before.clone();
        }
        let config = self.base.as_ref().map_err(Arc::clone).map(|base| {
            let mut config = ClientConfig::clone(base);
            // Each backend has its own session memory: its tickets are useless at another backend with the same name.
            config.resumption = Resumption::in_memory_sessions(SESSIONS);
            // A pool may also serve `tcp` listeners, whose protocol is unknown: ALPN is sent for HTTP/2 only.
            if http == BackendHttp::Http2 {
                config.alpn_protocols = vec![H2.to_vec()];
            }
            Arc::new(config)
        });
        Arc::new(Endpoint { config, base: self.base.clone().ok(), name: name.clone(), http })
    }
}

/// Returns the errors in the files that `settings` name. Reads the files, changes nothing.
pub fn check(settings: &BackendTls) -> Vec<String> {
    match read(settings, &Authorities::default()) {
        Ok(found) => found.notes,
        Err(faults) => faults,
    }
}

struct Found {
    config: ClientConfig,
    notes: Vec<String>,
    content: Content,
}

/// Reads the files: returns the rustls configuration with warnings, or every error.
fn read(settings: &BackendTls, authorities: &Authorities) -> Result<Found, Vec<String>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut notes = Vec::new();
    let verifier = verifier::new(&settings.verify, authorities, &provider, &mut notes);
    let identity = settings.identity.as_ref().map(|identity| read_identity(identity, &mut notes)).transpose();
    let (verifier, identity) = match (verifier, identity) {
        (Ok(verifier), Ok(identity)) => (verifier, identity),
        (verifier, identity) => {
            let identity = identity.err().map(|fault| fault.to_string());
            return Err(verifier.err().into_iter().chain(identity).collect());
        }
    };
    let content = Content {
        settings: settings.clone(),
        // They have been read already.
        trusted: match &settings.verify {
            Verify::System => authorities.system().ok(),
            Verify::File(path) => authorities.file(path).ok(),
            Verify::Off => None,
        },
        shown: identity.as_ref().map(|identity| identity.cert.clone()).unwrap_or_default(),
    };
    let versions = match settings.min_version {
        MinVersion::Tls12 => &[&TLS13, &TLS12][..],
        MinVersion::Tls13 => &[&TLS13],
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("the provider has ciphers and groups for both versions");
    // `dangerous()` is only the name of the call: the verifier is webpki's, unless the configuration disables
    // verification.
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    };
    Ok(Found { config, notes, content })
}

/// Reads a certificate with its key, to be shown to a server. `notes` get what the server may not like.
pub(super) fn read_identity(
    identity: &Identity,
    notes: &mut Vec<String>,
) -> Result<CertifiedKey, CertificateFault> {
    let path = &*identity.certificate;
    let fault = |kind| CertificateFault::new(path, kind);
    let text = pem_file::read(path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| fault(Kind::Malformed(error.to_string())))?;
    let leaf = chain.first().ok_or_else(|| fault(Kind::HoldsNoCertificate))?;
    let facts = Facts::of(leaf).map_err(|why| fault(Kind::Malformed(why)))?;
    key::expect_private(&identity.key)?;
    let key =
        key::read(&identity.key, &pem_file::read(&identity.key)?, identity.key_passphrase_file.as_deref())?;
    // The backend decides whether it accepts an expired client certificate: penstock warns and sends the certificate.
    if let Some(fault) = CertificateFault::untimely(path, &facts, SystemTime::now()) {
        notes.push(fault.to_string());
    }
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(CertificateFault::new(path, Kind::Mismatch))
        }
        _ => Ok(certified),
    }
}

pub struct Endpoint {
    config: Result<Arc<ClientConfig>, Arc<str>>,
    /// What `config` was made of.
    base: Option<Arc<ClientConfig>>,
    name: ServerName<'static>,
    http: BackendHttp,
}

impl Endpoint {
    /// Performs the TLS handshake with a backend; fails with a timeout at `deadline`.
    pub async fn shake_hands(self: &Arc<Self>, plain: Plain, deadline: Instant) -> Result<Outbound, Cause> {
        let config = self.config.as_ref().map_err(|why| Cause::Tls(why.to_string()))?;
        let connecting = TlsConnector::from(config.clone()).connect(self.name.clone(), plain);
        match tokio::time::timeout_at(deadline.into(), connecting).await {
            Ok(Ok(tls)) if self.http == BackendHttp::Http2 && tls.get_ref().1.alpn_protocol() != Some(H2) => {
                Err(Cause::Tls(fault::NO_HTTP2.to_owned()))
            }
            Ok(Ok(tls)) => Ok(Outbound { tls, endpoint: self.clone(), ended: Ended::No }),
            Ok(Err(error)) => Err(Cause::Tls(fault::of_handshake(&error))),
            Err(_) => Err(Cause::Tls(fault::SILENT.to_owned())),
        }
    }
}

pub struct Outbound {
    tls: TlsStream<Plain>,
    endpoint: Arc<Endpoint>,
    ended: Ended,
}

impl Outbound {
    /// Returns the TLS settings that the handshake used.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Tells how the backend ended its sending direction: with or without close_notify.
    pub fn ended(&self) -> Ended {
        self.ended
    }

    pub fn plain(&self) -> &Plain {
        self.tls.get_ref().0
    }
}

impl AsyncRead for Outbound {
    /// Reads. A TCP end without close_notify is reported as a normal end here; [`Outbound::ended`] tells the two apart.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut this.tls).poll_read(cx, into);
        match read {
            Poll::Ready(Ok(())) if into.filled().len() == before && into.remaining() > 0 => {
                this.ended = Ended::Whole;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                this.ended = Ended::Cut;
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}

impl AsyncWrite for Outbound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}
