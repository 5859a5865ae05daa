//! TLS of a listener: the handshake, and what it is made with, on rustls and aws-lc-rs.
//!
//! `store.rs` holds a certificate directory in service: `layout.rs` says which files belong together, `pair.rs` reads them,
//! `lookup.rs` finds a certificate by the name that a client asks for, `watch.rs` notices changes. `policy.rs` says what
//! is negotiated, `client.rs` asks clients who they are. A broken file never stops the others. `staple.rs` holds a
//! certificate's OCSP response, `ocsp.rs` fetches it.
//!
//! # The path of a certificate
//!
//! 1. `crates/serve/src/tls/watch.rs`, a thread per directory, notices a change and waits until it is quiet.
//! 2. `crates/serve/src/tls/layout.rs` says which files belong together, `crates/serve/src/tls/pair.rs` reads those that changed, with
//!    `crates/serve/src/tls/key.rs`. What is wrong is a `crates/serve/src/tls/fault.rs`.
//! 3. `crates/serve/src/tls/store.rs` decides: a pair that is broken leaves the one from before. It outlives snapshots.
//! 4. One swap publishes a new `crates/serve/src/tls/lookup.rs`; the next handshake in `crates/serve/src/tls.rs` finds it.
//! 5. A certificate's OCSP response is in `crates/serve/src/tls/staple.rs`, shared by all that is read of the same certificate. It
//!    got there through `crates/logic/src/ocsp/verify.rs`, from a file or from `crates/serve/src/tls/ocsp.rs`, a task of the slow
//!    side that asks responders (`crates/serve/src/tls/ocsp/fetch.rs`) when `crates/logic/src/ocsp/schedule.rs` says so.
//! 6. A certificate of ACME is put into such a directory by `crates/serve/src/acme.rs`, a task for each on the slow side, when
//!    `crates/logic/src/acme.rs` says that it is due: an account (`crates/serve/src/acme/account.rs`), an order
//!    (`crates/serve/src/acme/order.rs`), one file renamed into place (`crates/serve/src/acme/kept.rs`). Workers answer the
//!    challenges that are pending from `crates/serve/src/acme/challenges.rs`.
//! 7. `crates/serve/src/report/certificates.rs` is what `penstock ctl certs` shows.
//! 8. Clients' certificates: `crates/serve/src/tls/client/trust.rs` holds CAs and revocation lists in service, watched the same way;
//!    `crates/serve/src/tls/client.rs` decides with them (names: `crates/logic/src/client_name.rs`), and
//!    `crates/serve/src/tls/client/identity.rs` is what backends are told. Ticket keys hang on what is asked of clients
//!    (`crates/serve/src/tls/tickets.rs`), so no session goes around it.
//!
//! Sessions that clients keep are encrypted in `crates/serve/src/tls/tickets.rs`, with keys of our own or those of `ticket-keys`.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use config::types::{ClientCertificates, Http2, Protocol, TlsPolicy, TlsSettings};
use logic::client_hello;
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{Acceptor, ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tokio::io::AsyncWriteExt;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::acme::{self, Challenges};
use crate::ending::{ClientFault, Ending, Spoken, TlsFault};
use crate::events::Level;
use crate::lock::lock;
use crate::plain::Plain;
use crate::state::State;
use crate::stream::Stream;

mod alpn;
pub mod backend;
mod bundle;
mod client;
mod facts;
mod fault;
mod handshakes;
mod key;
mod layout;
mod lookup;
pub(crate) mod ocsp;
mod pair;
mod pem_file;
mod policy;
mod replay;
mod scan;
mod session;
mod sha256;
mod standing;
mod staple;
mod store;
mod tickets;
mod watch;

pub use bundle::Bundle;
pub use client::Identity;
pub use facts::{Facts, MustStaple};
pub use fault::{CertificateFault, CertificateFaultKind};
pub(crate) use handshakes::Handshakes;
pub use ocsp::Staples;
pub use pair::Pair;
pub use session::{Session, Telling};
pub use standing::{Certificate, Standing};
pub use staple::{Origin, Staple};
pub use store::Store;

use alpn::H2;
use client::{Clients, Ready, Trust, TrustSource};
use layout::DEFAULT_NAME;
use scan::Scan;
use store::{Filler, Removal, Source};
use tickets::{Asked, Ring};
use watch::{Watch, Watched};

/// Time for the last word to an authority.
const CHALLENGE_END: Duration = Duration::from_secs(1);

/// What all TLS listeners share over reloads: certificates in service, whom clients' certificates are from, and ticket keys, so
/// that tickets given out before stay good.
pub struct Shared {
    tickets: tickets::Rings,
    staples: Arc<Staples>,
    directories: Mutex<HashMap<Source, Directory>>,
    trusts: Mutex<HashMap<TrustSource, TrustInUse>>,
}

struct Directory {
    store: Arc<Store>,
    watch: Option<Watch>,
}

struct TrustInUse {
    trust: Arc<Trust>,
    watch: Option<Watch>,
}

impl Default for Shared {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Shared {
    /// Keeps OCSP responses in this directory, if there is one.
    pub fn new(staples: Option<PathBuf>) -> Self {
        Self {
            tickets: tickets::Rings::default(),
            staples: Arc::new(Staples::new(staples)),
            directories: Mutex::default(),
            trusts: Mutex::default(),
        }
    }

    /// Keeps staples fresh, for ever; on the slow side.
    pub async fn refresh_staples(self: Arc<Self>, state: Arc<State>) {
        let announce = || {
            let stores: Vec<_> = lock(&self.directories).values().map(|it| it.store.clone()).collect();
            let state = state.clone();
            // A store may be reading its directory meanwhile.
            tokio::task::spawn_blocking(move || {
                stores.iter().for_each(|store| store.announce(&Scan::default(), &state));
            });
        };
        self.staples.clone().refresh(&state.account, announce).await;
    }

    /// The certificates of a listener, read now. What is wrong with them is said through `state`.
    fn read(&self, listener: &Arc<str>, settings: &TlsSettings, state: &State) -> Arc<Store> {
        let store = self.store(source_of(settings));
        store.set_default(listener, settings.default.as_deref());
        let scan = store.scan(Removal::AtOnce);
        store.announce(&scan, state);
        store
    }

    /// The certificates that an authority issues beside those of the directory, read now.
    fn read_beside(&self, settings: &TlsSettings, state: &State) -> Option<Arc<Store>> {
        let store = self.store(source_beside(settings)?);
        let scan = store.scan(Removal::AtOnce);
        store.announce(&scan, state);
        Some(store)
    }

    fn store(&self, source: Source) -> Arc<Store> {
        let mut directories = lock(&self.directories);
        let new =
            || Directory { store: Arc::new(Store::new(source.clone(), self.staples.clone())), watch: None };
        directories.entry(source.clone()).or_insert_with(new).store.clone()
    }

    /// Whom a listener's clients must have their certificates from, read now.
    fn trust(&self, settings: &ClientCertificates, state: &State) -> Arc<Trust> {
        let source = TrustSource::from(settings);
        let trust = {
            let mut trusts = lock(&self.trusts);
            let new = || TrustInUse { trust: Arc::new(Trust::new(source.clone())), watch: None };
            trusts.entry(source.clone()).or_insert_with(new).trust.clone()
        };
        let scan = trust.scan();
        trust.announce(&scan, state);
        trust
    }

    /// Watches the directories that the configuration names, and no others.
    pub fn reconcile(&self, config: &config::Config, state: &Arc<State>) {
        let settings = || config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
        let keys: Vec<_> = settings().map(|settings| settings.ticket_keys.clone()).collect();
        self.tickets.reconcile(&keys, state);
        let sources = settings().flat_map(|tls| [Some(source_of(tls)), source_beside(tls)]);
        let used: Vec<Source> = sources.flatten().collect();
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
                Err(error) => unwatched(state, &directory.store.subject(), &error),
            }
        }
        drop(directories);
        self.reconcile_trusts(config, state);
    }

    fn reconcile_trusts(&self, config: &config::Config, state: &Arc<State>) {
        let with_tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
        let used: Vec<TrustSource> =
            with_tls.filter_map(|tls| tls.client_certificates.as_ref()).map(TrustSource::from).collect();
        let mut trusts = lock(&self.trusts);
        trusts.retain(|source, in_use| {
            let keep = used.contains(source);
            if !keep {
                let gone = in_use.trust.subject();
                state.forget_degraded(|subject| subject == gone);
            }
            keep
        });
        for in_use in trusts.values_mut().filter(|in_use| in_use.watch.is_none()) {
            match watch::start(in_use.trust.clone(), state.clone()) {
                Ok(watch) => in_use.watch = Some(watch),
                Err(error) => unwatched(state, &in_use.trust.subject(), &error),
            }
        }
    }
}

fn unwatched(state: &State, subject: &str, error: &io::Error) {
    let message = format!("is not watched: {error}; a reload reads it again");
    state.events.record(Level::Warning, subject, message);
}

fn source_of(settings: &TlsSettings) -> Source {
    let filler = match &settings.acme {
        Some(acme) if acme.directory == settings.certificates => Filler::Authority,
        _ => Filler::People,
    };
    let passphrase_file = match filler {
        Filler::People => settings.key_passphrase_file.clone(),
        Filler::Authority => None,
    };
    Source { directory: settings.certificates.clone(), passphrase_file, ocsp: settings.ocsp, filler }
}

/// What an authority issues, where that is not all that the listener has.
fn source_beside(settings: &TlsSettings) -> Option<Source> {
    let acme = settings.acme.as_ref().filter(|acme| acme.directory != settings.certificates)?;
    Some(Source {
        directory: acme.directory.clone(),
        passphrase_file: None,
        ocsp: settings.ocsp,
        filler: Filler::Authority,
    })
}

/// What is wrong with a listener's certificates, ticket keys, and those that its clients' are from; each with the key of
/// `tls` that names it. Reads files, changes nothing.
pub fn check(settings: &TlsSettings) -> Vec<(&'static str, String)> {
    let store = Store::new(source_of(settings), Arc::new(Staples::new(None)));
    store.set_default(&"".into(), settings.default.as_deref());
    store.scan(Removal::AtOnce);
    let of = |key: &'static str| move |fault: String| (key, fault);
    let mut faults: Vec<_> = store.faults().into_iter().map(of("certificates")).collect();
    faults.extend(settings.ticket_keys.as_deref().and_then(tickets::check).map(of("ticket-keys")));
    if let Some(clients) = &settings.client_certificates {
        let trust = Trust::new(TrustSource::from(clients));
        trust.scan();
        faults.extend(trust.faults().into_iter().map(of("client-certificates")));
    }
    faults
}

/// The names of each certificate that would be served. Reads files, changes nothing.
pub fn names(settings: &TlsSettings) -> Vec<Vec<String>> {
    let sources = [Some(source_of(settings)), source_beside(settings)];
    let stores = sources.into_iter().flatten().map(|source| {
        let store = Store::new(source, Arc::new(Staples::new(None)));
        store.scan(Removal::AtOnce);
        store
    });
    let served = stores.flat_map(|store| store.report()).filter_map(|certificate| certificate.pair);
    served.map(|pair| pair.facts.names.clone()).collect()
}

/// One listener's TLS.
#[derive(Clone)]
pub struct Terminator {
    recipe: Arc<Recipe>,
    mode: Mode,
    certificates: Arc<Certificates>,
    handshakes: Arc<Handshakes>,
    handshake_timeout: Duration,
    challenges: Arc<Challenges>,
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
        let beside = shared.read_beside(settings, state);
        let default = settings.default.clone();
        let certificates = Arc::new(Certificates { store, beside, fallback, default });
        let alpn = match &listener.protocol {
            Protocol::Http(settings) => {
                let http2 = matches!(settings.http2, Http2::On { .. }).then(|| H2.to_vec());
                http2.into_iter().chain([b"http/1.1".to_vec()]).collect()
            }
            Protocol::Tcp(_) | Protocol::TlsPassthrough(_) => Vec::new(),
        };
        let recipe = Recipe {
            policy: settings.policy.clone(),
            certificates: certificates.clone(),
            alpn,
            tickets: shared.tickets.get(settings.ticket_keys.as_deref(), state),
        };
        let mode = match &settings.client_certificates {
            None => {
                Mode::Anybody(Arc::new(recipe.make(WebPkiClientVerifier::no_client_auth(), Asked::NOTHING)))
            }
            Some(settings) => {
                let clients = Clients::new(settings, shared.trust(settings, state));
                clients.ready(|verifier, asked| recipe.make(verifier, asked));
                Mode::Known(Arc::new(clients))
            }
        };
        Self {
            recipe: Arc::new(recipe),
            mode,
            certificates,
            handshakes: Handshakes::new(settings.handshakes),
            handshake_timeout: settings.handshake_timeout,
            challenges: state.acme.challenges.clone(),
        }
    }

    /// The certificates, as they are known.
    pub fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        [&self.certificates.store].into_iter().chain(&self.certificates.beside)
    }
}

/// Whom a listener asks who they are.
#[derive(Clone)]
enum Mode {
    Anybody(Arc<ServerConfig>),
    Known(Arc<Clients>),
}

/// What goes into a configuration besides whom clients must be known by.
struct Recipe {
    policy: TlsPolicy,
    certificates: Arc<Certificates>,
    alpn: Vec<Vec<u8>>,
    tickets: Option<Arc<Ring>>,
}

impl Recipe {
    fn make(&self, clients: Arc<dyn ClientCertVerifier>, asked: Asked) -> ServerConfig {
        let mut config = policy::server(&self.policy, self.certificates.clone(), clients);
        if let Some(ring) = &self.tickets {
            config.ticketer = ring.for_context(&asked.0);
        }
        config.alpn_protocols = self.alpn.clone();
        config
    }
}

/// Finds the certificate for a client.
struct Certificates {
    store: Arc<Store>,
    /// What an authority issues, where that is in a directory of its own.
    beside: Option<Arc<Store>>,
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
        let beside = self.beside.as_ref().map(|store| store.lookup());
        let issued = |name| beside.as_ref()?.find(name);
        let default = || lookup.named(self.default.as_deref().unwrap_or(DEFAULT_NAME));
        let slot = match hello.server_name() {
            Some(name) => {
                lookup.find(name).or_else(|| issued(name)).or_else(default).ok_or(Refusal::UnknownName)?
            }
            None => default().or_else(|| lookup.only()).ok_or(Refusal::NoName)?,
        };
        let fits = |schemes: &[_]| slot.iter().find(|pair| pair.key.choose_scheme(schemes).is_some());
        // In TLS 1.2 rustls has taken those schemes away that none of the client's ciphers goes with.
        let twin = if slot.len() > 1 { fits(hello.signature_schemes()) } else { None };
        Ok(twin.unwrap_or(&slot[0]).certified(SystemTime::now()))
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
            Self::UnknownName => client_hello::UNRECOGNIZED_NAME,
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
    /// What backends are told, if there is anything.
    pub session: Option<Rc<Session>>,
}

/// Makes the handshake. `early` are bytes of it that were read with a PROXY header.
pub async fn accept(
    terminator: &Terminator,
    plain: Plain,
    early: Vec<u8>,
    telling: Telling,
) -> Result<Handshake, Ending> {
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
        Ok(Ok((mut tls, _))) if tls.get_ref().1.alpn_protocol() == Some(acme::ALPN) => {
            // The authority has seen what it wanted; nothing else is spoken here (RFC 8737 section 3).
            let _ = tokio::time::timeout(CHALLENGE_END, tls.shutdown()).await;
            Err(Ending::AcmeChallenge)
        }
        Ok(Ok((tls, identity))) => {
            let version = match tls.get_ref().1.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            };
            let spoken = match tls.get_ref().1.alpn_protocol() {
                Some(H2) => Spoken::Http2,
                _ => Spoken::Http1,
            };
            let session = Session::of(tls.get_ref().1, version, identity, telling).map(Rc::new);
            Ok(Handshake { stream: Stream::tls(tls), version, spoken, session })
        }
        Ok(Err(fault)) => Err(Ending::TlsFailed(fault)),
        Err(_) => Err(Ending::TlsTimeout),
    }
}

async fn shake_hands(
    terminator: &Terminator,
    plain: Plain,
    early: &[u8],
) -> Result<(TlsStream<Plain>, Option<Identity>), TlsFault> {
    let mut early = early;
    let mut start = hear_hello(plain, &mut early).await?;
    if let Some(config) = challenge(terminator, &start.client_hello()) {
        let accepting = start.into_stream_with(config, |connection| replay::feed(connection, early));
        return accepting.await.map(|tls| (tls, None)).map_err(|error| fault_of(&error));
    }
    if policy::is_downgraded(&terminator.recipe.policy, &start.client_hello()) {
        refuse(&mut start.io, INAPPROPRIATE_FALLBACK).await;
        return Err(TlsFault::Incompatible);
    }
    if let Err(refusal) = terminator.certificates.choose(&start.client_hello()) {
        // rustls has only one alert for this, access_denied; clients know more of the ones that are meant for it.
        refuse(&mut start.io, refusal.alert()).await;
        return Err(TlsFault::NoCertificate);
    }
    let (config, asked): (_, Option<(&Clients, Arc<Ready>)>) = match &terminator.mode {
        Mode::Anybody(config) => (config.clone(), None),
        Mode::Known(clients) => {
            let ready = clients.ready(|verifier, asked| terminator.recipe.make(verifier, asked));
            (ready.config.clone(), Some((clients, ready)))
        }
    };
    let accepting = start.into_stream_with(config, |connection| replay::feed(connection, early));
    let tls = match accepting.into_fallible().await {
        Ok(tls) => tls,
        Err((error, plain)) => {
            let fault = fault_of(&error);
            if matches!(fault, TlsFault::Client(_)) {
                // A client of TLS 1.3 has begun to speak already: a reset would overtake the alert that says why.
                crate::linger::linger(&Stream::plain(plain)).await;
            }
            return Err(fault);
        }
    };
    let Some((clients, ready)) = asked else { return Ok((tls, None)) };
    match clients.identify(&ready, tls.get_ref().1) {
        Ok(identity) => Ok((tls, identity)),
        Err(fault) => {
            crate::linger::linger(&Stream::tls(tls)).await;
            Err(fault)
        }
    }
}

async fn refuse(plain: &mut Plain, alert: u8) {
    // The client may be gone; there is nobody else to tell.
    let _ = plain.write_all(&client_hello::fatal_alert(alert)).await;
    let _ = plain.shutdown().await;
}

/// What an authority's handshake is made with, while it looks whether a name is ours.
fn challenge(terminator: &Terminator, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
    terminator.challenges.handshake(hello.server_name(), hello.alpn()?)
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
                crate::linger::linger(&Stream::plain(plain)).await;
                return Err(fault_of(&io::Error::new(io::ErrorKind::InvalidData, error)));
            }
        }
    }
    let mut hearing = LazyConfigAcceptor::new(acceptor, plain);
    match (&mut hearing).await {
        Ok(start) => Ok(start),
        Err(error) => {
            let fault = fault_of(&error);
            let Some(mut plain) = hearing.take_io().filter(|_| fault != TlsFault::Closed) else {
                return Err(fault);
            };
            if let Some(alert) = unsaid(&error) {
                let _ = plain.write_all(&client_hello::fatal_alert(alert)).await;
            }
            // Whoever still sends would see a reset in place of the alert.
            crate::linger::linger(&Stream::plain(plain)).await;
            Err(fault)
        }
    }
}

/// The alert for records that cannot be the beginning of a ClientHello: rustls ends without a word there. record_overflow,
/// decode_error (RFC 8446 section 6.2).
fn unsaid(error: &io::Error) -> Option<u8> {
    use rustls::InvalidMessage as Fault;
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(Fault::MessageTooLarge)) => Some(22),
        Some(rustls::Error::InvalidMessage(
            Fault::HandshakePayloadTooLarge
            | Fault::InvalidContentType
            | Fault::InvalidEmptyPayload
            | Fault::UnknownProtocolVersion,
        )) => Some(50),
        _ => None,
    }
}

/// RFC 7507 section 2.
const INAPPROPRIATE_FALLBACK: u8 = 86;

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
    crate::linger::linger(&stream).await;
    TlsFault::NotTls
}

fn fault_of(error: &io::Error) -> TlsFault {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => TlsFault::NotTls,
        Some(rustls::Error::PeerIncompatible(_)) => TlsFault::Incompatible,
        Some(rustls::Error::AlertReceived(_)) => TlsFault::Alert,
        Some(rustls::Error::NoCertificatesPresented) => TlsFault::Client(ClientFault::Missing),
        Some(error @ rustls::Error::InvalidCertificate(_)) => TlsFault::Client(ClientFault::of(error)),
        // rustls has no variant of its own for a resolver that found nothing.
        Some(rustls::Error::General(why)) if why.contains("certificate") => TlsFault::NoCertificate,
        Some(_) => TlsFault::Protocol,
        None => TlsFault::Closed,
    }
}
