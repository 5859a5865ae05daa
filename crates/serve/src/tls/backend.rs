//! TLS to backends: the handshake, and what it is made with. Traffic and checks use the same.
//! `backend/authorities.rs` says whom to believe, `backend/verifier.rs` believes, `backend/fault.rs` has the words for what
//! went wrong. Nothing here ever falls back to believing anybody: what cannot be verified is not connected to.

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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::alpn::H2;
use super::facts::Facts;
use super::fault::{CertificateFault, CertificateFaultKind as Kind};
use super::{key, pem_file};
use crate::events::Level;
use crate::plain::{Ended, Plain};
use crate::state::State;

mod authorities;
mod fault;
mod verifier;

pub use authorities::Authorities;

/// Sessions remembered for each backend: as many tickets as rustls keeps for one server. Each is a few KiB at most.
const SESSIONS: usize = 8;

/// TLS of a pool, as its files were when they were read.
#[derive(Clone)]
pub struct PoolTls {
    /// What the handshakes are made with, or why there can be none.
    base: Result<Arc<ClientConfig>, Arc<str>>,
    verifies: Verifies,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verifies {
    Yes,
    No,
}

impl PoolTls {
    /// Reads the files of pool `name`. What is wrong is said through `state`; while it cannot be used, what was read `before`
    /// goes on, unless that believed anybody.
    pub fn new(
        name: &str,
        settings: &BackendTls,
        authorities: &Authorities,
        state: &State,
        before: Option<&Self>,
    ) -> Self {
        let subject = format!("pool.{name}.tls");
        let verifies = if settings.verify == Verify::Off { Verifies::No } else { Verifies::Yes };
        if verifies == Verifies::No {
            let message =
                "verify is off: whoever stands between here and the backends can read and change everything";
            state.events.record(Level::Warning, &subject, message);
        }
        let (base, notes) = match read(settings, authorities) {
            Ok((config, notes)) => (Ok(Arc::new(config)), notes),
            Err(faults) => (Err(faults.join("; ")), Vec::new()),
        };
        for note in notes {
            state.events.record(Level::Warning, &subject, note);
        }
        let why = match base {
            Ok(config) => {
                state.restore(&subject);
                return Self { base: Ok(config), verifies };
            }
            Err(why) => why,
        };
        match before.filter(|before| before.verifies == Verifies::Yes && before.base.is_ok()) {
            Some(before) => {
                state.degrade(&subject, &format!("{why} (what was read before goes on)"));
                before.clone()
            }
            None => {
                state.degrade(&subject, &why);
                Self { base: Err(why.into()), verifies }
            }
        }
    }

    /// TLS to one backend, whose certificate must be for `name`, to speak this.
    pub fn endpoint(&self, name: &ServerName<'static>, http: BackendHttp) -> Arc<Endpoint> {
        let config = self.base.as_ref().map_err(Arc::clone).map(|base| {
            let mut config = ClientConfig::clone(base);
            // Of each backend its own: another one of the same name knows nothing of its tickets.
            config.resumption = Resumption::in_memory_sessions(SESSIONS);
            // A pool may serve tcp too, whatever that speaks: without HTTP/2 there is nothing to agree on.
            if http == BackendHttp::Http2 {
                config.alpn_protocols = vec![H2.to_vec()];
            }
            Arc::new(config)
        });
        Arc::new(Endpoint { config, name: name.clone(), http })
    }
}

/// What is wrong with the files that `settings` name. Reads them, changes nothing.
pub fn check(settings: &BackendTls) -> Vec<String> {
    match read(settings, &Authorities::default()) {
        Ok((_, notes)) => notes,
        Err(faults) => faults,
    }
}

/// What handshakes are made with, and what should be said about it; or every fault.
fn read(
    settings: &BackendTls,
    authorities: &Authorities,
) -> Result<(ClientConfig, Vec<String>), Vec<String>> {
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
    let versions = match settings.min_version {
        MinVersion::Tls12 => &[&TLS13, &TLS12][..],
        MinVersion::Tls13 => &[&TLS13],
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("the provider has ciphers and groups for both versions");
    // The verifier is ours, but it is not dangerous: it is webpki's, unless the configuration switches it off.
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    };
    Ok((config, notes))
}

fn read_identity(identity: &Identity, notes: &mut Vec<String>) -> Result<CertifiedKey, CertificateFault> {
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
    // Backends decide what they take: one that has expired is said, and shown to them.
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

/// TLS to one backend.
pub struct Endpoint {
    config: Result<Arc<ClientConfig>, Arc<str>>,
    name: ServerName<'static>,
    http: BackendHttp,
}

impl Endpoint {
    /// Makes the handshake, at the latest at `deadline`.
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

/// A TLS connection to a backend.
pub struct Outbound {
    tls: TlsStream<Plain>,
    endpoint: Arc<Endpoint>,
    ended: Ended,
}

impl Outbound {
    /// What the handshake was made with.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// How the backend has ended its direction.
    pub fn ended(&self) -> Ended {
        self.ended
    }

    /// The connection below.
    pub fn plain(&self) -> &Plain {
        self.tls.get_ref().0
    }
}

impl AsyncRead for Outbound {
    /// An end without close_notify is one like any other here; [`Outbound::ended`] tells it.
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
