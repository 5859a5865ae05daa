//! TLS of a listener: the handshake, and what it is made with, on rustls and aws-lc-rs.
//!
//! `store.rs` holds a certificate directory in service: `layout.rs` says which files belong together, `pair.rs` reads them,
//! `lookup.rs` finds a certificate by the name that a client asks for, `watch.rs` notices changes. `policy.rs` says what
//! is negotiated. A broken file never stops the others.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::types::{Http2, Protocol, TlsSettings};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{Acceptor, ClientHello, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::AsyncWriteExt;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::events::Level;
use crate::outcome::{Ending, Spoken, TlsFault};
use crate::state::{State, lock};
use crate::stream::{Plain, Stream};

pub mod backend;
mod der;
mod facts;
mod fault;
mod handshakes;
mod key;
mod layout;
mod lookup;
mod pair;
mod policy;
mod replay;
mod staple;
mod store;
mod watch;

pub use facts::{Facts, MustStaple, Responder};
pub use fault::{CertificateFault, CertificateFaultKind};
pub use pair::Pair;
pub use staple::Staple;
pub use store::{Certificate, Standing, Store};

/// HTTP/2 over TLS in ALPN (RFC 9113 section 3.2).
const H2: &[u8] = b"h2";

use handshakes::Handshakes;
use store::{Removal, Source};
use watch::Watch;

/// NAME of the files whose certificate is for everybody that no other is for, unless the configuration names one.
const DEFAULT_NAME: &str = "default";

/// What all TLS listeners share over reloads: certificates in service, and tickets, so that those given out before stay
/// good.
pub struct Shared {
    tickets: Option<Arc<dyn ProducesTickets>>,
    directories: Mutex<HashMap<Source, Directory>>,
}

struct Directory {
    store: Arc<Store>,
    watch: Option<Watch>,
}

impl Default for Shared {
    fn default() -> Self {
        // Without randomness for ticket keys, sessions are not resumed; everything else works.
        Self { tickets: aws_lc_rs::Ticketer::new().ok(), directories: Mutex::default() }
    }
}

impl Shared {
    /// The certificates of a listener, read now. What is wrong with them is said through `state`.
    fn read(&self, listener: &Arc<str>, settings: &TlsSettings, state: &State) -> Arc<Store> {
        let source = source_of(settings);
        let store = {
            let mut directories = lock(&self.directories);
            let new = || Directory { store: Arc::new(Store::new(source.clone())), watch: None };
            directories.entry(source.clone()).or_insert_with(new).store.clone()
        };
        store.set_default(listener, settings.default.as_deref());
        let scan = store.scan(Removal::AtOnce);
        store.announce(&scan, state);
        store
    }

    /// Watches the directories that the configuration names, and no others.
    pub fn reconcile(&self, config: &config::Config, state: &Arc<State>) {
        let used: Vec<Source> =
            config.listeners.iter().filter_map(|listener| listener.tls.as_ref()).map(source_of).collect();
        let mut directories = lock(&self.directories);
        directories.retain(|source, directory| {
            let keep = used.contains(source);
            if !keep {
                let gone = directory.store.subject();
                state.forget_degraded(|subject| subject == gone);
            }
            keep
        });
        for directory in directories.values_mut().filter(|directory| directory.watch.is_none()) {
            match watch::start(directory.store.clone(), state.clone()) {
                Ok(watch) => directory.watch = Some(watch),
                Err(error) => {
                    let message = format!("is not watched: {error}; a reload reads it again");
                    state.events.record(Level::Warning, directory.store.subject(), message);
                }
            }
        }
    }
}

fn source_of(settings: &TlsSettings) -> Source {
    Source { directory: settings.certificates.clone(), passphrase_file: settings.key_passphrase_file.clone() }
}

/// What is wrong with a listener's certificates. Reads files, changes nothing.
pub fn check(settings: &TlsSettings) -> Vec<String> {
    let store = Store::new(source_of(settings));
    store.set_default(&"".into(), settings.default.as_deref());
    store.scan(Removal::AtOnce);
    store.faults()
}

/// One listener's TLS.
#[derive(Clone)]
pub struct Terminator {
    config: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
    handshakes: Arc<Handshakes>,
    handshake_timeout: Duration,
}

impl Terminator {
    /// TLS of a listener. Reads its certificates; while none of them is usable, those of `before` serve on.
    pub fn new(
        listener: &config::types::Listener,
        settings: &TlsSettings,
        shared: &Shared,
        state: &State,
        before: Option<&Terminator>,
    ) -> Self {
        let store = shared.read(&listener.name, settings, state);
        let before = before.map(|before| before.certificates.serving());
        let fallback = before.filter(|before| !Arc::ptr_eq(before, &store) && store.lookup().is_empty());
        let certificates = Arc::new(Certificates { store, fallback, default: settings.default.clone() });
        let mut config = policy::server(&settings.policy, certificates.clone());
        if let Some(tickets) = &shared.tickets {
            config.ticketer = tickets.clone();
        }
        if let Protocol::Http(settings) = &listener.protocol {
            let http2 = matches!(settings.http2, Http2::On { .. }).then(|| H2.to_vec());
            config.alpn_protocols = http2.into_iter().chain([b"http/1.1".to_vec()]).collect();
        }
        Self {
            config: Arc::new(config),
            certificates,
            handshakes: Handshakes::new(settings.handshakes),
            handshake_timeout: settings.handshake_timeout,
        }
    }

    /// The certificates, as they are known.
    pub fn store(&self) -> &Arc<Store> {
        &self.certificates.store
    }
}

/// Finds the certificate for a client.
struct Certificates {
    store: Arc<Store>,
    /// What served before the configuration named a directory without a usable certificate.
    fallback: Option<Arc<Store>>,
    /// What the configuration calls the default.
    default: Option<Box<str>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("directory", &self.store.directory()).finish_non_exhaustive()
    }
}

impl Certificates {
    /// The store that serves.
    fn serving(&self) -> Arc<Store> {
        match &self.fallback {
            Some(before) if self.store.lookup().is_empty() => before.clone(),
            _ => self.store.clone(),
        }
    }

    /// The certificate for what a client says, or the alert that it gets.
    fn choose(&self, hello: &ClientHello<'_>) -> Result<Arc<CertifiedKey>, Refusal> {
        let lookup = self.store.lookup();
        let before = match &self.fallback {
            Some(before) if lookup.is_empty() => Some(before.lookup()),
            _ => None,
        };
        let lookup = before.unwrap_or(lookup);
        let default = || lookup.named(self.default.as_deref().unwrap_or(DEFAULT_NAME));
        let slot = match hello.server_name() {
            Some(name) => lookup.find(name).or_else(default).ok_or(Refusal::UnknownName)?,
            None => default().or_else(|| lookup.only()).ok_or(Refusal::NoName)?,
        };
        let fits =
            |schemes: &[_]| slot.iter().find(|pair| pair.certified.key.choose_scheme(schemes).is_some());
        // In TLS 1.2 rustls has taken those schemes away that none of the client's ciphers goes with.
        let twin = if slot.len() > 1 { fits(hello.signature_schemes()) } else { None };
        Ok(twin.unwrap_or(&slot[0]).certified.clone())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(&hello).ok()
    }
}

/// Why there is no certificate for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It names a server that we have none for.
    UnknownName,
    /// It names none, and there are several.
    NoName,
}

impl Refusal {
    /// unrecognized_name (RFC 6066 section 3), missing_extension (RFC 8446 section 9.2).
    fn alert(self) -> u8 {
        match self {
            Self::UnknownName => 112,
            Self::NoName => 109,
        }
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
    let accepting = async {
        let first = match early.first() {
            Some(first) => Some(*first),
            None => first_byte(&plain).await,
        };
        if first.is_some_and(|first| first.is_ascii_uppercase()) {
            return Err(answer_plain_http(plain).await);
        }
        let mut place = terminator.handshakes.begin();
        tokio::select! {
            biased;
            done = shake_hands(terminator, plain, &early) => done,
            () = place.needed() => Err(TlsFault::Crowded),
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

async fn shake_hands(
    terminator: &Terminator,
    plain: Plain,
    early: &[u8],
) -> Result<TlsStream<Plain>, TlsFault> {
    let mut early = early;
    let mut start = hear_hello(plain, &mut early).await?;
    if let Err(refusal) = terminator.certificates.choose(&start.client_hello()) {
        // rustls has only one alert for this, access_denied; clients know more of the ones that are meant for it.
        // The client may be gone; there is nobody else to tell.
        let _ = start.io.write_all(&[ALERT, 3, 3, 0, 2, FATAL, refusal.alert()]).await;
        let _ = start.io.shutdown().await;
        return Err(TlsFault::NoCertificate);
    }
    let accepting =
        start.into_stream_with(terminator.config.clone(), |connection| replay::feed(connection, early));
    accepting.await.map_err(|error| fault_of(&error))
}

/// Reads the ClientHello, from `early` first, of which what follows it is left.
async fn hear_hello(mut plain: Plain, early: &mut &[u8]) -> Result<StartHandshake<Plain>, TlsFault> {
    let mut acceptor = Acceptor::default();
    while !early.is_empty() {
        if !matches!(acceptor.read_tls(early), Ok(1..)) {
            break;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(StartHandshake::from_parts(accepted, plain)),
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                // To a vector it cannot fail; to the client it may, and there is nobody else to tell.
                let _ = alert.write_all(&mut bytes);
                let _ = plain.write_all(&bytes).await;
                return Err(fault_of(&io::Error::new(io::ErrorKind::InvalidData, error)));
            }
        }
    }
    LazyConfigAcceptor::new(acceptor, plain).await.map_err(|error| fault_of(&error))
}

/// Content type and level of an alert record (RFC 8446 sections 5.1 and 6).
const ALERT: u8 = 21;
const FATAL: u8 = 2;

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
