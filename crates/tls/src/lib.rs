//! TLS for clients (listeners) and towards backends, on rustls and aws-lc-rs: handshakes and their configuration.
//! Connections without TLS (`plain.rs`) are here too, because handshakes start on them.
//!
//! Layer above `state` and below `proxy` (`state` <- `tls` <- `proxy` <- `serve`): no code here uses a worker, session
//! or snapshot.
//!
//! `store.rs` keeps the certificates of one directory in use: `layout.rs` finds which files belong together, `pair.rs`
//! reads them, `lookup.rs` finds a certificate by the server name that a client sends, `watch.rs` notices changes.
//! `hello.rs` reads a client's first message, `handshake.rs` does the rest of the handshake, `established.rs` reads and
//! writes after it. `policy.rs` sets versions and cipher suites, `client.rs` verifies client certificates. `alert.rs` has
//! the alerts that rustls does not send, `suites.rs` sends them encrypted. A malformed file never disables the others.
//! `staple.rs` holds a certificate's OCSP response, `ocsp.rs` fetches it.
//!
//! # The path of a certificate
//!
//! 1. `crates/tls/src/watch.rs`, one thread per directory, notices a change and waits until no more changes follow.
//! 2. `crates/tls/src/layout.rs` finds which files belong together; `crates/tls/src/pair.rs` reads the changed ones
//!    with `crates/tls/src/key.rs`. Errors are values of `crates/tls/src/fault.rs`.
//! 3. `crates/tls/src/store.rs` decides what is used: if a pair is faulty, the previous one stays. The store outlives
//!    snapshots.
//! 4. One atomic swap publishes a new `crates/tls/src/lookup.rs`; the next handshake in `crates/tls/src/lib.rs` uses
//!    it.
//! 5. The OCSP response is in `crates/tls/src/staple.rs`, shared by every copy of the same certificate. It is verified
//!    by `crates/logic/src/ocsp/verify.rs` and comes from a file or from `crates/tls/src/ocsp.rs`, a task outside the
//!    workers that asks responders (`crates/tls/src/ocsp/fetch.rs`) when `crates/logic/src/ocsp/schedule.rs` says so.
//! 6. An ACME certificate is written into such a directory by `crates/serve/src/acme.rs`, one task per certificate
//!    outside the workers, when `crates/logic/src/acme.rs` says that it is due: an account
//!    (`crates/serve/src/acme/account.rs`), an order (`crates/serve/src/acme/order.rs`), one file moved into place by
//!    rename(2) (`crates/serve/src/acme/kept.rs`). Workers answer pending challenges from
//!    `crates/state/src/acme/challenges.rs`.
//! 7. `crates/serve/src/report/certificates.rs` makes the output of `penstock ctl certs`.
//! 8. Client certificates: `crates/tls/src/client/trust.rs` holds CAs and revocation lists, watched in the same way;
//!    `crates/tls/src/client.rs` decides with them (names: `crates/logic/src/client_name.rs`);
//!    `crates/tls/src/client/identity.rs` makes the fields for backends. Ticket keys (`crates/tls/src/tickets.rs`)
//!    depend on the client certificate settings, so a resumed session cannot bypass them.
//!
//! Session tickets are encrypted in `crates/tls/src/tickets.rs`, with generated keys or those of `ticket-keys`.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use config::types::{ClientCertificates, Http2, Protocol, TlsPolicy, TlsSettings};
use logic::tls_alert;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{Accepted, Acceptor, ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ServerConfig};
use state::State;
use state::acme::{self, Challenges};
use state::ending::{ClientProtocol, Ending, TlsFault};
use state::events::Level;
use state::lock::lock;
use tokio::io::AsyncWriteExt;
use tokio_rustls::server::TlsStream;

use crate::plain::Plain;

mod alert;
mod alpn;
pub mod backend;
mod bundle;
mod client;
pub mod control_client;
pub mod established;
mod facts;
mod failed;
mod fault;
mod handshake;
mod handshakes;
mod hello;
mod issuer;
mod key;
mod layout;
pub mod linger;
mod lookup;
pub mod ocsp;
pub mod operator;
mod pair;
mod pem_file;
pub mod plain;
mod plain_http;
mod policy;
mod replay;
mod scan;
mod session;
mod sha256;
mod standing;
mod staple;
pub mod sticky_key;
mod store;
mod suites;
mod tickets;
mod watch;
mod wire;

pub use bundle::Bundle;
pub use client::Identity;
pub use facts::{Facts, MustStaple};
pub use failed::Refused;
pub use fault::{CertificateFault, CertificateFaultKind};
pub use handshakes::Handshakes;
pub use issuer::Issuer;
pub use ocsp::Staples;
pub use pair::Pair;
pub use session::{ClientFacts, ProxyAdditions};
pub use standing::{Certificate, CertificateState};
pub use staple::{Origin, Staple};
pub use store::Store;

use alpn::H2;
use backend::Authorities;
use client::{Clients, Ready, Trust, TrustSource};
use failed::Failed;
use hello::SecondReader;
use layout::DEFAULT_NAME;
use lookup::Slot;
use scan::Scan;
use store::{Filler, Removal, Source};
use tickets::{Asked, Ring};
use watch::{Watch, Watched};

/// Time limit of closing an ACME challenge connection.
const CHALLENGE_END: Duration = Duration::from_secs(1);

/// State that all TLS listeners share and that survives reloads: certificates, CAs for client certificates, and ticket
/// keys (so that older tickets stay valid).
pub struct Shared {
    tickets: tickets::Rings,
    staples: Arc<Staples>,
    /// CAs of the operating system, read once.
    authorities: Arc<Authorities>,
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
    /// Generated ticket keys, for the next process of an upgrade: nothing else may see them.
    pub fn ticket_keys(&self) -> Vec<u8> {
        self.tickets.generated()
    }

    /// Takes over the ticket keys of the process before. To be called when a snapshot was made.
    pub fn take_ticket_keys(&self, keys: &[u8]) {
        self.tickets.take_over(keys, SystemTime::now());
    }

    /// Stores OCSP responses in the directory `staples`, if one is given.
    pub fn new(staples: Option<PathBuf>) -> Self {
        Self {
            tickets: tickets::Rings::default(),
            staples: Arc::new(Staples::new(staples)),
            authorities: Arc::default(),
            directories: Mutex::default(),
            trusts: Mutex::default(),
        }
    }

    /// Refreshes OCSP responses; never returns. Runs outside the workers.
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

    /// Returns the shared state in use, for the listeners of a new snapshot.
    pub fn known(&self) -> Known {
        let (directories, trusts) = (lock(&self.directories), lock(&self.trusts));
        let stores = directories.iter().map(|(source, it)| (source.clone(), it.store.clone()));
        let trusts = trusts.iter().map(|(source, it)| (source.clone(), it.trust.clone()));
        Known {
            staples: self.staples.clone(),
            authorities: self.authorities.clone(),
            stores: stores.collect(),
            trusts: trusts.collect(),
            rings: self.tickets.known(),
        }
    }

    /// Registers the certificates, CAs and keys of a listener, and reads their files now. Reports errors through
    /// `state`.
    pub fn adopt(&self, listener: &Arc<str>, terminator: &Terminator, state: &State) {
        let certificates = &terminator.certificates;
        certificates.store.set_default(listener, certificates.default.as_deref());
        for store in terminator.stores() {
            let new = || Directory { store: store.clone(), watch: None };
            lock(&self.directories).entry(store.source().clone()).or_insert_with(new);
            let scan = store.scan(Removal::AtOnce);
            store.announce(&scan, state);
        }
        if !certificates.store.lookup().is_empty() {
            certificates.fallback.store(None);
        }
        self.tickets.adopt(&terminator.recipe.tickets, state);
        if let Mode::Known(clients) = &terminator.mode {
            let trust = clients.trust();
            let new = || TrustInUse { trust: trust.clone(), watch: None };
            lock(&self.trusts).entry(trust.source().clone()).or_insert_with(new);
            let scan = trust.scan();
            trust.announce(&scan, state);
            clients.ready(|verifier, asked| terminator.recipe.make(verifier, asked));
        }
    }

    /// Watches the directories that the configuration names, and stops watching all others.
    pub fn reconcile(&self, config: &config::Config, state: &Arc<State>) {
        let settings = || config.tls();
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
        let used: Vec<TrustSource> =
            config.tls().filter_map(|tls| tls.client_certificates.as_ref()).map(TrustSource::from).collect();
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

/// Certificates, client CAs and ticket keys by the configuration they are read from. New entries are not read or
/// watched before [`Shared::adopt`].
#[derive(Clone)]
pub struct Known {
    staples: Arc<Staples>,
    authorities: Arc<Authorities>,
    stores: HashMap<Source, Arc<Store>>,
    trusts: HashMap<TrustSource, Arc<Trust>>,
    rings: HashMap<Option<PathBuf>, Arc<Ring>>,
}

impl Known {
    fn store(&mut self, source: Source) -> Arc<Store> {
        let new = || {
            let (staples, authorities) = (self.staples.clone(), self.authorities.clone());
            Arc::new(Store::new(source.clone(), staples, authorities))
        };
        self.stores.entry(source.clone()).or_insert_with(new).clone()
    }

    fn trust(&mut self, settings: &ClientCertificates) -> Arc<Trust> {
        let source = TrustSource::from(settings);
        self.trusts.entry(source.clone()).or_insert_with(|| Arc::new(Trust::new(source))).clone()
    }

    fn ring(&mut self, path: Option<&Path>) -> Arc<Ring> {
        self.rings.entry(path.map(Path::to_owned)).or_insert_with(|| Arc::new(Ring::new(path))).clone()
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

/// Returns the directory of ACME certificates, if the listener has other certificates as well.
fn source_beside(settings: &TlsSettings) -> Option<Source> {
    let acme = settings.acme.as_ref().filter(|acme| acme.directory != settings.certificates)?;
    Some(Source {
        directory: acme.directory.clone(),
        passphrase_file: None,
        ocsp: settings.ocsp,
        filler: Filler::Authority,
    })
}

/// Checks the certificates, ticket keys and client CAs of a listener. Returns each error with the key of `tls` that
/// names its file. Reads files, changes nothing.
pub fn check(settings: &TlsSettings) -> Vec<(&'static str, String)> {
    let store = Store::new(source_of(settings), Arc::new(Staples::new(None)), Arc::default());
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

/// Returns the DNS names of each certificate that would be used. Reads files, changes nothing.
pub fn names(settings: &TlsSettings) -> Vec<Vec<String>> {
    served(settings).into_iter().map(|pair| pair.facts.names.clone()).collect()
}

/// When a certificate is valid.
#[derive(Clone, Debug)]
pub struct Validity {
    /// Its first DNS name, or who issued it.
    pub name: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

/// Returns when each certificate is valid that would be used. Reads files, changes nothing.
pub fn validities(settings: &TlsSettings) -> Vec<Validity> {
    let of = |pair: Arc<Pair>| {
        let Facts { names, issuer, not_before, not_after, .. } = &pair.facts;
        let name = names.first().unwrap_or(issuer).clone();
        Validity { name, not_before: *not_before, not_after: *not_after }
    };
    served(settings).into_iter().map(of).collect()
}

/// Returns the names and the chain of each certificate that would be used, in DER. Reads files, changes nothing.
pub fn chains(settings: &TlsSettings) -> Vec<(Vec<String>, Vec<Vec<u8>>)> {
    let of = |pair: Arc<Pair>| {
        let chain = pair.chain().iter().map(|certificate| certificate.to_vec()).collect();
        (pair.facts.names.clone(), chain)
    };
    served(settings).into_iter().map(of).collect()
}

fn served(settings: &TlsSettings) -> Vec<Arc<Pair>> {
    let sources = [Some(source_of(settings)), source_beside(settings)];
    let stores = sources.into_iter().flatten().map(|source| {
        let store = Store::new(source, Arc::new(Staples::new(None)), Arc::default());
        store.scan(Removal::AtOnce);
        store
    });
    stores.flat_map(|store| store.report()).filter_map(|certificate| certificate.pair).collect()
}

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
    /// Makes the TLS of a listener from `known`; adds new entries there, which [`Shared::adopt`] reads. While none of
    /// its certificates is usable, those of `before` stay in use.
    pub fn new(
        listener: &config::types::Listener,
        settings: &TlsSettings,
        known: &mut Known,
        challenges: Arc<Challenges>,
        before: Option<&Terminator>,
    ) -> Self {
        let alpn = match &listener.protocol {
            Protocol::Http(settings) => {
                let http2 = matches!(settings.http2, Http2::On { .. }).then(|| H2.to_vec());
                http2.into_iter().chain([b"http/1.1".to_vec()]).collect()
            }
            Protocol::Tcp(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) | Protocol::Dsr(_) => {
                Vec::new()
            }
        };
        Self::with_alpn(alpn, settings, known, challenges, before)
    }

    /// The same with these names of protocols; with none, clients may name any.
    pub fn with_alpn(
        alpn: Vec<Vec<u8>>,
        settings: &TlsSettings,
        known: &mut Known,
        challenges: Arc<Challenges>,
        before: Option<&Terminator>,
    ) -> Self {
        let store = known.store(source_of(settings));
        let handshakes = Handshakes::after(before.map(|before| &before.handshakes), settings.handshakes);
        let before = before.map(|before| before.certificates.serving());
        let fallback = ArcSwapOption::new(before.filter(|before| !Arc::ptr_eq(before, &store)));
        let beside = source_beside(settings).map(|source| known.store(source));
        let default = settings.default.clone();
        let certificates = Arc::new(Certificates { store, beside, fallback, default });
        let recipe = Recipe {
            policy: settings.policy.clone(),
            certificates: certificates.clone(),
            alpn,
            tickets: known.ring(settings.ticket_keys.as_deref()),
        };
        let mode = match &settings.client_certificates {
            None => Mode::NoClientCertificate(Arc::new(
                recipe.make(WebPkiClientVerifier::no_client_auth(), Asked::NOTHING),
            )),
            Some(settings) => Mode::Known(Arc::new(Clients::new(settings, known.trust(settings)))),
        };
        Self {
            recipe: Arc::new(recipe),
            mode,
            certificates,
            handshakes,
            handshake_timeout: settings.handshake_timeout,
            challenges,
        }
    }

    pub fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        [&self.certificates.store].into_iter().chain(&self.certificates.beside)
    }

    /// Returns the issuers of the certificates in use.
    pub fn issuers(&self) -> Vec<Issuer> {
        let certificates = self.stores().flat_map(|store| store.report());
        certificates.filter_map(|certificate| certificate.pair).map(|pair| pair.issuer()).collect()
    }
}

/// Tells whether a listener asks for client certificates.
#[derive(Clone)]
enum Mode {
    NoClientCertificate(Arc<ServerConfig>),
    Known(Arc<Clients>),
}

/// Parts of a rustls configuration other than the client certificate verifier.
struct Recipe {
    policy: TlsPolicy,
    certificates: Arc<Certificates>,
    alpn: Vec<Vec<u8>>,
    tickets: Arc<Ring>,
}

impl Recipe {
    fn make(&self, clients: Arc<dyn ClientCertVerifier>, asked: Asked) -> ServerConfig {
        let mut config = policy::server(&self.policy, self.certificates.clone(), clients);
        config.ticketer = self.tickets.for_context(&asked.0);
        config.alpn_protocols = self.alpn.clone();
        config
    }
}

struct Certificates {
    store: Arc<Store>,
    /// Certificates from an ACME authority, if they are in a directory of their own.
    beside: Option<Arc<Store>>,
    /// Previous certificates, used while the newly configured directory has no usable one.
    fallback: ArcSwapOption<Store>,
    /// Default certificate as named in the configuration.
    default: Option<Box<str>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("directory", &self.store.directory()).finish_non_exhaustive()
    }
}

impl Certificates {
    fn serving(&self) -> Arc<Store> {
        match self.fallback.load_full() {
            Some(before) if self.store.lookup().is_empty() => before,
            _ => self.store.clone(),
        }
    }

    /// Returns the certificate for a ClientHello, or the reason for an alert.
    fn choose(&self, hello: &ClientHello<'_>) -> Result<Arc<CertifiedKey>, Refusal> {
        self.with_slot(hello.server_name(), |slot| {
            let fits = |schemes: &[_]| slot.iter().find(|pair| pair.key.choose_scheme(schemes).is_some());
            // In TLS 1.2 rustls has removed the signature schemes that fit no cipher suite of the client.
            let twin = if slot.len() > 1 { fits(hello.signature_schemes()) } else { None };
            twin.unwrap_or(&slot[0]).certified(SystemTime::now())
        })
    }

    /// Returns whether the issuer of the certificates for a name is trusted. They may have changed since a handshake.
    fn issuer(&self, name: Option<&str>) -> Issuer {
        let trusted = self.with_slot(name, |slot| slot.iter().all(|pair| pair.issuer() == Issuer::Trusted));
        if trusted == Ok(true) { Issuer::Trusted } else { Issuer::Unknown }
    }

    /// Gives `read` the certificates for a server name, or for a client that sends none.
    fn with_slot<T>(&self, name: Option<&str>, read: impl FnOnce(&Slot) -> T) -> Result<T, Refusal> {
        let lookup = self.store.lookup();
        let before = if lookup.is_empty() { self.fallback.load_full() } else { None };
        let lookup = before.as_ref().map_or(lookup, |before| before.lookup());
        let beside = self.beside.as_ref().map(|store| store.lookup());
        let issued = |name| beside.as_ref()?.find(name);
        let default = || lookup.named(self.default.as_deref().unwrap_or(DEFAULT_NAME));
        let slot = match name {
            Some(name) => {
                lookup.find(name).or_else(|| issued(name)).or_else(default).ok_or(Refusal::UnknownName)?
            }
            None => default().or_else(|| lookup.only()).ok_or(Refusal::NoName)?,
        };
        Ok(read(slot))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(&hello).ok()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// No certificate is for the server name that the client sent.
    UnknownName,
    /// The client sent no server name, and there are several certificates.
    NoName,
}

impl Refusal {
    /// Returns unrecognized_name (RFC 6066 section 3) or missing_extension (RFC 8446 section 9.2).
    fn alert(self) -> u8 {
        match self {
            Self::UnknownName => tls_alert::UNRECOGNIZED_NAME,
            Self::NoName => tls_alert::MISSING_EXTENSION,
        }
    }
}

pub struct Handshake {
    pub stream: Box<TlsStream<Plain>>,
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// Protocol that client and server agreed on.
    pub spoken: ClientProtocol,
    pub issuer: Issuer,
    /// TLS facts for backends. `None` if backends get none.
    pub session: Option<Rc<ClientFacts>>,
}

/// Performs the handshake. `early` holds bytes of the handshake that were read together with a PROXY header.
pub async fn accept(
    terminator: &Terminator,
    plain: Plain,
    early: Vec<u8>,
    telling: ProxyAdditions,
) -> Result<Handshake, Refused> {
    let accepting = async {
        let first = match early.first() {
            Some(first) => Some(*first),
            None => plain_http::first_byte(&plain).await,
        };
        if first.is_some_and(|first| first.is_ascii_uppercase()) {
            return Err(Failed::with_page(plain, plain_http::STATUS, plain_http::answer()));
        }
        let mut place = terminator.handshakes.begin();
        tokio::select! {
            biased;
            done = shake_hands(terminator, plain, &early) => done,
            () = place.needed() => Err(TlsFault::TooManyHandshakes.into()),
        }
    };
    match tokio::time::timeout(terminator.handshake_timeout, accepting).await {
        Ok(Ok((mut tls, _))) if tls.get_ref().1.alpn_protocol() == Some(acme::ALPN) => {
            // The ACME authority has seen the challenge certificate; the connection carries nothing else (RFC 8737
            // section 3).
            let _ = tokio::time::timeout(CHALLENGE_END, tls.shutdown()).await;
            Err(Ending::AcmeChallenge.into())
        }
        Ok(Ok((tls, identity))) => {
            let version = match tls.get_ref().1.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            };
            let spoken = match tls.get_ref().1.alpn_protocol() {
                Some(H2) => ClientProtocol::Http2,
                _ => ClientProtocol::Http1,
            };
            let issuer = terminator.certificates.issuer(tls.get_ref().1.server_name());
            let session = ClientFacts::of(tls.get_ref().1, version, identity, telling).map(Rc::new);
            Ok(Handshake { stream: Box::new(tls), version, spoken, issuer, session })
        }
        // It has given back its permit, so that a client that does not read takes none.
        Ok(Err(failed)) => Err(failed.part().await),
        Err(_) => Err(Ending::TlsTimeout.into()),
    }
}

async fn shake_hands(
    terminator: &Terminator,
    plain: Plain,
    early: &[u8],
) -> Result<(TlsStream<Plain>, Option<Identity>), Failed> {
    let mut early = early;
    let (accepted, plain, second) = read_client_hello(plain, &mut early).await?;
    if let Some(config) = challenge(terminator, &accepted.client_hello()) {
        return handshake::complete(accepted, config, plain, early).await.map(|tls| (tls, None));
    }
    // The client retries without TLS 1.3 because it failed (RFC 7507): an attacker on the path caused the failure. rustls
    // relies on RFC 8446 section 4.1.3, which old clients do not know.
    let is_fallback = accepted.client_hello().cipher_suites().contains(&CipherSuite::Unknown(FALLBACK_SCSV));
    if is_fallback && !second.offers_tls13() && policy::speaks_tls13(&terminator.recipe.policy) {
        return Err(Failed::with_alert(TlsFault::Incompatible, plain, tls_alert::INAPPROPRIATE_FALLBACK));
    }
    match terminator.certificates.choose(&accepted.client_hello()) {
        // rustls has only the alert access_denied here; clients know more precise alerts.
        Err(refusal) => {
            let name = accepted.client_hello().server_name().map(str::to_owned);
            return Err(Failed::no_certificate(plain, name.as_deref(), refusal.alert()));
        }
        // rustls has no alert here.
        Ok(chosen) if !can_sign(&chosen, &accepted.client_hello()) => {
            return Err(Failed::with_alert(TlsFault::Incompatible, plain, tls_alert::HANDSHAKE_FAILURE));
        }
        Ok(_) => {}
    }
    let (config, asked): (_, Option<(&Clients, Arc<Ready>)>) = match &terminator.mode {
        Mode::NoClientCertificate(config) => (config.clone(), None),
        Mode::Known(clients) => {
            let ready = clients.ready(|verifier, asked| terminator.recipe.make(verifier, asked));
            (ready.config.clone(), Some((clients, ready)))
        }
    };
    let tls = handshake::complete(accepted, config, plain, early).await?;
    let Some((clients, ready)) = asked else { return Ok((tls, None)) };
    match clients.identify(&ready, tls.get_ref().1) {
        Ok(identity) => Ok((tls, identity)),
        Err(fault) => {
            let (plain, mut connection) = tls.into_inner();
            connection.send_close_notify();
            Err(Failed::new(fault, plain, alert::queued(&mut connection)))
        }
    }
}

/// Returns whether the key of a certificate has a signature scheme that the client accepts. A client of TLS 1.2 may have
/// no list: rustls decides then.
fn can_sign(chosen: &CertifiedKey, hello: &ClientHello<'_>) -> bool {
    let accepted = hello.signature_schemes();
    accepted.is_empty() || chosen.key.choose_scheme(accepted).is_some()
}

/// Returns the configuration for the handshake of an ACME authority that validates a name.
fn challenge(terminator: &Terminator, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
    terminator.challenges.handshake(hello.server_name(), hello.alpn()?)
}

/// Reads the ClientHello, from `early` first. Leaves in `early` the bytes that follow it.
async fn read_client_hello(
    mut plain: Plain,
    early: &mut &[u8],
) -> Result<(Accepted, Plain, SecondReader), Failed> {
    let (mut acceptor, mut second) = (Acceptor::default(), SecondReader::default());
    loop {
        let read = match early.is_empty() {
            true => poll_fn(|cx| hello::poll_read(&mut acceptor, &mut second, &mut plain, cx)).await,
            false => hello::read(&mut acceptor, &mut second, &mut *early),
        };
        match read {
            Ok(1..) => {}
            // Not from the kernel: rustls takes no message that is so long.
            Err(error) if error.raw_os_error().is_none() => {
                return Err(Failed::with_alert(TlsFault::NotTls, plain, tls_alert::DECODE_ERROR));
            }
            _ => return Err(TlsFault::Closed.into()),
        }
        if let Some(alert) = second.refusal() {
            let fault = match alert {
                tls_alert::PROTOCOL_VERSION => TlsFault::Incompatible,
                _ => TlsFault::Protocol,
            };
            return Err(Failed::with_alert(fault, plain, alert));
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok((accepted, plain, second)),
            Ok(None) => {}
            Err((error, alert)) => {
                let last = hello::alert(&error, alert);
                let fault = failed::fault_of(&io::Error::new(io::ErrorKind::InvalidData, error));
                return Err(Failed::new(fault, plain, last));
            }
        }
    }
}

/// Cipher suite value that signals a retry with an older version (RFC 7507 section 2).
const FALLBACK_SCSV: u16 = 0x5600;
