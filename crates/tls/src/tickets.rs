//! Session tickets (RFC 5077, RFC 8446 section 4.6.1): session state that clients store, encrypted by the server.
//!
//! Keys are generated and rotated, or read from files that several nodes share. A ticket is accepted only in the
//! context it was made in: a listener that requires client certificates does not resume a session of another listener.
//! rustls makes sure that a session is resumed only under the same server name.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;
use state::State;
use state::lock::lock;
use sys::file;

use super::fault::CertificateFault;
use super::key;
use super::sha256::Digest;

/// Hash of the client certificate settings: the context of tickets. A resumed session keeps the client's identity
/// without a new proof, so a ticket is accepted only under the settings it was issued under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked(pub(super) Digest);

impl Asked {
    pub(super) const NOTHING: Self = Self([0; 32]);
}

/// All ticket keys of this process: the generated ones, and those of each configured path.
#[derive(Debug, Default)]
pub(super) struct Rings {
    by_source: Mutex<HashMap<Option<PathBuf>, Arc<Ring>>>,
}

impl Rings {
    /// Returns the rings in use, by the path of their keys; `None` stands for generated keys.
    pub(super) fn known(&self) -> HashMap<Option<PathBuf>, Arc<Ring>> {
        lock(&self.by_source).clone()
    }

    /// Puts a ring into use and reads its keys now.
    pub(super) fn adopt(&self, ring: &Arc<Ring>, state: &State) {
        lock(&self.by_source).entry(ring.path.clone()).or_insert_with(|| ring.clone());
        ring.begin(SystemTime::now());
        ring.refresh(SystemTime::now(), state);
    }

    /// The secrets of the generated keys with their ages, for the next process of an upgrade. Nothing else may see them.
    pub(super) fn generated(&self) -> Vec<u8> {
        let Some(ring) = lock(&self.by_source).get(&None).cloned() else { return Vec::new() };
        let keys = ring.keys.load();
        let all = keys.iter().filter_map(|key| Some((seconds(key.since).to_be_bytes(), key.secret?)));
        all.flat_map(|(since, secret)| since.into_iter().chain(secret)).collect()
    }

    /// Takes over the keys that [`Self::generated`] has returned in the process before: tickets from before the upgrade stay
    /// good. What makes no sense is left out.
    pub(super) fn take_over(&self, generated: &[u8], now: SystemTime) {
        let Some(ring) = lock(&self.by_source).get(&None).cloned() else { return };
        let _changing = lock(&ring.changing);
        let (records, _) = generated.as_chunks::<RECORD>();
        let passed = records.iter().filter_map(|record| {
            let (since, secret) = record.split_first_chunk::<8>()?;
            let since =
                SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::from_be_bytes(*since)))?;
            Key::generated(secret.try_into().ok()?, since.min(now)).map(Arc::new)
        });
        let young = passed.filter(|key| key.is_young(now)).take(MAX_KEYS);
        // The newest of them goes on to encrypt, until its time is over.
        let own = ring.keys.load();
        let all: Vec<_> = young.chain(own.iter().cloned()).take(MAX_KEYS).collect();
        ring.keys.store(Arc::new(all));
    }

    /// Watches the rings that the configuration names, and drops all others.
    pub(super) fn reconcile(&self, used: &[Option<PathBuf>], state: &Arc<State>) {
        let mut rings = lock(&self.by_source);
        rings.retain(|source, ring| {
            let keep = used.contains(source);
            if !keep && let Some(gone) = ring.subject() {
                state.forget_degraded(|subject| subject == gone);
            }
            keep
        });
        for ring in rings.values() {
            ring.watch(state);
        }
    }
}

/// Returns the error in the keys of a path.
pub(super) fn check(path: &Path) -> Option<String> {
    read(path).err().map(|fault| fault.to_string())
}

/// Ticket keys of one source; the first one encrypts. Without random numbers from the system the ring is empty:
/// sessions are not resumed.
pub(super) struct Ring {
    path: Option<PathBuf>,
    keys: ArcSwap<Vec<Arc<Key>>>,
    /// Locked while the keys change. Dropping the sender ends the thread that reads the key files.
    changing: Mutex<Option<Sender<()>>>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Ring {
    /// Makes a ring without keys; [`Rings::adopt`] reads them.
    pub(super) fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), keys: ArcSwap::default(), changing: Mutex::default() }
    }

    /// Generates the first key.
    fn begin(&self, now: SystemTime) {
        let _changing = lock(&self.changing);
        if self.keys.load().is_empty()
            && let Some(key) = Key::random(now)
        {
            self.keys.store(Arc::new(vec![Arc::new(key)]));
        }
    }

    /// Returns the ticketer of one context. A ticket of another context is refused.
    pub(super) fn for_context(self: &Arc<Self>, context: &[u8]) -> Arc<dyn ProducesTickets> {
        Arc::new(Tickets { ring: self.clone(), context: context.into() })
    }

    fn subject(&self) -> Option<String> {
        self.path.as_ref().map(|path| format!("ticket-keys:{}", path.display()))
    }

    /// Reads the key files again and reports errors. If they cannot be read, the previous keys stay in use.
    fn refresh(&self, now: SystemTime, state: &State) {
        let (Some(path), Some(subject)) = (&self.path, self.subject()) else { return };
        match read(path) {
            Ok(secrets) => {
                self.replace(path, &secrets, now);
                state.restore(&subject);
            }
            Err(fault) => {
                let kept = match self.keys.load().iter().any(|key| key.origin == Origin::File) {
                    true => "the earlier keys stay in use",
                    false => "this node uses its own keys: other nodes cannot resume its sessions",
                };
                state.degrade(&subject, &format!("{fault}; {kept}"));
            }
        }
    }

    fn replace(&self, path: &Path, secrets: &[Vec<u8>], now: SystemTime) {
        let _changing = lock(&self.changing);
        let before = self.keys.load();
        let known = |name: &[u8; NAME]| before.iter().find(|key| key.name == *name).cloned();
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for secret in secrets {
            let Some(key) = Key::of_secret(secret, now) else { continue };
            if keys.iter().all(|other| other.name != key.name) {
                keys.push(known(&key.name).unwrap_or_else(|| Arc::new(key)));
            }
        }
        // A single file holds only the newest key: the keys it held before decrypt tickets until those expire. A key
        // removed from a directory is dropped immediately.
        if !path.is_dir() {
            let left = before.iter().filter(|key| keys.iter().all(|other| other.name != key.name));
            let left: Vec<_> = left.filter(|key| key.is_young(now)).take(MAX_KEYS).cloned().collect();
            keys.extend(left);
        }
        let names = |keys: &[Arc<Key>]| keys.iter().map(|key| key.name).collect::<Vec<_>>();
        if names(&keys) != names(&before) {
            self.keys.store(Arc::new(keys));
        }
    }

    /// Reads the key files again every [`PERIOD`], until the ring is dropped.
    fn watch(self: &Arc<Self>, state: &Arc<State>) {
        let mut changing = lock(&self.changing);
        if self.path.is_none() || changing.is_some() {
            return;
        }
        let (sender, stopped) = mpsc::channel();
        let (ring, state_of_thread) = (Arc::downgrade(self), state.clone());
        let started = std::thread::Builder::new().name("ticket-keys".to_owned()).spawn(move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let Some(ring) = ring.upgrade() else { return };
                ring.refresh(SystemTime::now(), &state_of_thread);
            }
        });
        match (started, self.subject()) {
            (Ok(_), _) => *changing = Some(sender),
            (Err(error), subject) => {
                let why = format!("not read again: {error}; a reload does that");
                state.degrade(&subject.unwrap_or_default(), &why);
            }
        }
    }

    /// Returns the key that encrypts. A generated key is replaced after [`ROTATION`].
    fn current(&self, now: SystemTime) -> Option<Arc<Key>> {
        let key = self.keys.load().first()?.clone();
        if key.origin == Origin::File || !key.is_older(now, ROTATION) {
            return Some(key);
        }
        let _changing = lock(&self.changing);
        let before = self.keys.load_full();
        let first = before.first()?;
        if first.name != key.name {
            return Some(first.clone());
        }
        let Some(new) = Key::random(now).map(Arc::new) else { return Some(key) };
        let old = before.iter().filter(|key| key.is_young(now)).cloned();
        self.keys.store(Arc::new(std::iter::once(new.clone()).chain(old).take(MAX_KEYS).collect()));
        Some(new)
    }

    fn seal(&self, context: &[u8], plain: &[u8], now: SystemTime) -> Option<Vec<u8>> {
        let key = self.current(now)?;
        let mut sealed = seconds(now).to_be_bytes().to_vec();
        sealed.extend_from_slice(plain);
        let bound = bound(&key.name, context);
        let nonce = key.aead.seal_in_place_append_tag(Aad::from(bound.as_slice()), &mut sealed).ok()?;
        Some([&key.name[..], nonce.as_ref(), &sealed].concat())
    }

    fn open(&self, context: &[u8], ticket: &[u8], now: SystemTime) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME>()?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let key = self.keys.load().iter().find(|key| key.name == *name)?.clone();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let opened = key.aead.open_in_place(nonce, Aad::from(bound(name, context)), &mut sealed).ok()?;
        let (made, plain) = opened.split_first_chunk::<8>()?;
        let age = seconds(now).saturating_sub(u64::from_be_bytes(*made));
        (age <= LIFETIME.as_secs()).then(|| plain.to_vec())
    }
}

#[derive(Debug)]
struct Tickets {
    ring: Arc<Ring>,
    context: Box<[u8]>,
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        !self.ring.keys.load().is_empty()
    }

    fn lifetime(&self) -> u32 {
        LIFETIME.as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        // A ticket contains the client's certificates, and its length field has 16 bits: a client with a very long
        // chain gets no ticket.
        if plain.len() > MAX_SESSION {
            return None;
        }
        self.ring.seal(&self.context, plain, SystemTime::now())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.ring.open(&self.context, ticket, SystemTime::now())
    }
}

struct Key {
    name: [u8; NAME],
    aead: RandomizedNonceKey,
    since: SystemTime,
    origin: Origin,
    /// What a generated key was derived from, for the next process of an upgrade.
    secret: Option<[u8; MIN_SECRET]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Own,
    File,
}

impl Key {
    fn random(now: SystemTime) -> Option<Self> {
        let mut secret = [0; MIN_SECRET];
        rand::fill(&mut secret).ok()?;
        Self::generated(secret, now)
    }

    fn generated(secret: [u8; MIN_SECRET], since: SystemTime) -> Option<Self> {
        Some(Self { origin: Origin::Own, secret: Some(secret), ..Self::of_secret(&secret, since)? })
    }

    /// Derives name and key from the secret alone, so that every node gets the same ones.
    fn of_secret(secret: &[u8], now: SystemTime) -> Option<Self> {
        let extracted = Salt::new(HKDF_SHA256, PURPOSE).extract(secret);
        let (mut name, mut material) = ([0; NAME], [0; 32]);
        extracted.expand(&[b"name"], Bytes(NAME)).ok()?.fill(&mut name).ok()?;
        extracted.expand(&[b"key"], Bytes(material.len())).ok()?.fill(&mut material).ok()?;
        let aead = RandomizedNonceKey::new(&AES_256_GCM_SIV, &material).ok()?;
        Some(Self { name, aead, since: now, origin: Origin::File, secret: None })
    }

    fn is_older(&self, now: SystemTime, than: Duration) -> bool {
        now.duration_since(self.since).is_ok_and(|age| age >= than)
    }

    /// Returns true if a ticket made with this key may still be valid.
    fn is_young(&self, now: SystemTime) -> bool {
        !self.is_older(now, ROTATION + LIFETIME)
    }
}

/// Output length for HKDF.
struct Bytes(usize);

impl aws_lc_rs::hkdf::KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

#[derive(Debug, thiserror::Error)]
enum KeyFault {
    #[error("ticket-keys = {path:?} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Exposed(CertificateFault),
    #[error(
        "{path:?} is not a key for session tickets: it holds {length} bytes, not {MIN_SECRET} to {MAX_SECRET} random ones; \
         `openssl rand 48` makes some"
    )]
    Length { path: PathBuf, length: usize },
    #[error("{path:?} is not a key for session tickets: all of its bytes are the same")]
    Constant { path: PathBuf },
    #[error("there is no key for session tickets in the directory {0:?}")]
    Empty(PathBuf),
}

/// Reads the secrets of a file, or of a directory's files in descending order of names. Skips names that start with a
/// dot.
fn read(path: &Path) -> Result<Vec<Vec<u8>>, KeyFault> {
    let unreadable = |source| KeyFault::Unreadable { path: path.to_owned(), source };
    if !path.metadata().map_err(unreadable)?.is_dir() {
        return Ok(vec![read_secret(path)?]);
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(unreadable)?;
    let mut names: Vec<_> = entries.into_iter().map(|entry| entry.file_name()).collect();
    names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
    names.sort_by(|a, b| b.cmp(a));
    if names.is_empty() {
        return Err(KeyFault::Empty(path.to_owned()));
    }
    names.iter().take(MAX_KEYS).map(|name| read_secret(&path.join(name))).collect()
}

fn read_secret(path: &Path) -> Result<Vec<u8>, KeyFault> {
    key::expect_private(path).map_err(KeyFault::Exposed)?;
    let secret = file::read(path, MAX_SECRET as u64)
        .map_err(|source| KeyFault::Unreadable { path: path.to_owned(), source })?;
    let path = || path.to_owned();
    match secret.as_slice() {
        secret if !(MIN_SECRET..=MAX_SECRET).contains(&secret.len()) => {
            Err(KeyFault::Length { path: path(), length: secret.len() })
        }
        [first, rest @ ..] if rest.iter().all(|byte| byte == first) => {
            Err(KeyFault::Constant { path: path() })
        }
        _ => Ok(secret),
    }
}

fn bound(name: &[u8; NAME], context: &[u8]) -> Vec<u8> {
    [PURPOSE, name, context].concat()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const PURPOSE: &[u8] = b"penstock session ticket 1";

/// Length of the key name at the start of a ticket, in bytes.
const NAME: usize = 16;

/// Validity of a ticket. RFC 8446 allows a week; an attacker who gets the key can decrypt the resumed sessions.
const LIFETIME: Duration = Duration::from_hours(12);

/// Largest session state in a ticket, in bytes.
const MAX_SESSION: usize = 16 * 1024;

/// Time for which a generated key encrypts.
const ROTATION: Duration = Duration::from_hours(6);

/// Interval of reading key files again.
const PERIOD: Duration = Duration::from_secs(2);

const MIN_SECRET: usize = 32;
/// One key that is passed on: when it was made, in seconds, and its secret.
const RECORD: usize = 8 + MIN_SECRET;
const MAX_SECRET: usize = 1024;

/// Largest number of keys of one source.
const MAX_KEYS: usize = 64;

#[cfg(test)]
mod tests;
