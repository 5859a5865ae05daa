//! Session tickets (RFC 5077, RFC 8446 section 4.6.1): sessions that clients keep for us, encrypted.
//!
//! Keys are our own and rotate, or come from files that several nodes share. A ticket is opened only in the context that
//! it was made in: a listener that wants client certificates does not resume what another listener let in. That a session
//! goes on under its own server name only is looked after by rustls.

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

use super::fault::CertificateFault;
use super::key;
use super::sha256::Digest;
use crate::file;
use crate::lock::lock;
use crate::state::State;

/// What is asked of clients, hashed: the context of tickets. A session that is resumed brings along who the client has proved
/// to be, and nobody asks again; so a ticket is good only where the same is asked as where it was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked(pub(super) Digest);

impl Asked {
    /// No certificate.
    pub(super) const NOTHING: Self = Self([0; 32]);
}

/// All keys of this process: our own, and those of each configured path.
#[derive(Debug, Default)]
pub(super) struct Rings {
    by_source: Mutex<HashMap<Option<PathBuf>, Arc<Ring>>>,
}

impl Rings {
    /// The keys of a path, read now; without a path our own. `None` without randomness: sessions are not resumed, and
    /// everything else works.
    pub(super) fn get(&self, path: Option<&Path>, state: &State) -> Option<Arc<Ring>> {
        let ring = {
            let mut rings = lock(&self.by_source);
            let source = path.map(Path::to_owned);
            match rings.get(&source) {
                Some(ring) => ring.clone(),
                None => {
                    let ring = Arc::new(Ring::new(path, SystemTime::now())?);
                    rings.insert(source, ring.clone());
                    ring
                }
            }
        };
        ring.refresh(SystemTime::now(), state);
        Some(ring)
    }

    /// Looks after those that the configuration names, and no others.
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

/// What is wrong with the keys of a path.
pub(super) fn check(path: &Path) -> Option<String> {
    read(path).err().map(|fault| fault.to_string())
}

/// Keys, the one that encrypts first.
pub(super) struct Ring {
    path: Option<PathBuf>,
    keys: ArcSwap<Vec<Arc<Key>>>,
    /// Held by whoever changes the keys; dropping the sender ends the thread that reads them again.
    changing: Mutex<Option<Sender<()>>>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Ring {
    fn new(path: Option<&Path>, now: SystemTime) -> Option<Self> {
        let keys = ArcSwap::from_pointee(vec![Arc::new(Key::random(now)?)]);
        Some(Self { path: path.map(Path::to_owned), keys, changing: Mutex::default() })
    }

    /// Tickets of one context: what is made in one is not opened in another.
    pub(super) fn for_context(self: &Arc<Self>, context: &[u8]) -> Arc<dyn ProducesTickets> {
        Arc::new(Tickets { ring: self.clone(), context: context.into() })
    }

    fn subject(&self) -> Option<String> {
        self.path.as_ref().map(|path| format!("ticket-keys:{}", path.display()))
    }

    /// Reads the files again, and says what is wrong. Keys that cannot be read leave those from before.
    fn refresh(&self, now: SystemTime, state: &State) {
        let (Some(path), Some(subject)) = (&self.path, self.subject()) else { return };
        match read(path) {
            Ok(secrets) => {
                self.replace(path, &secrets, now);
                state.restore(&subject);
            }
            Err(fault) => {
                let kept = match self.keys.load().iter().any(|key| key.origin == Origin::File) {
                    true => "those from before are used",
                    false => "this node uses keys of its own, which no other knows",
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
        // A single file holds the newest key only: what it held before opens tickets until they are too old. What is
        // taken out of a directory is gone at once.
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

    /// Reads the files again from time to time, until the ring is dropped.
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

    /// The key that encrypts. Our own is replaced by a new one when its time is over.
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

/// What makes and opens the tickets of one context.
#[derive(Debug)]
struct Tickets {
    ring: Arc<Ring>,
    context: Box<[u8]>,
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME.as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        // A ticket holds the certificates that the client sent, and its length is a number of 16 bits: a client with a very
        // long chain gets none.
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
        Some(Self { origin: Origin::Own, ..Self::of_secret(&secret, now)? })
    }

    /// Name and key follow from the secret alone, so that every node finds the same.
    fn of_secret(secret: &[u8], now: SystemTime) -> Option<Self> {
        let extracted = Salt::new(HKDF_SHA256, PURPOSE).extract(secret);
        let (mut name, mut material) = ([0; NAME], [0; 32]);
        extracted.expand(&[b"name"], Bytes(NAME)).ok()?.fill(&mut name).ok()?;
        extracted.expand(&[b"key"], Bytes(material.len())).ok()?.fill(&mut material).ok()?;
        let aead = RandomizedNonceKey::new(&AES_256_GCM_SIV, &material).ok()?;
        Some(Self { name, aead, since: now, origin: Origin::File })
    }

    fn is_older(&self, now: SystemTime, than: Duration) -> bool {
        now.duration_since(self.since).is_ok_and(|age| age >= than)
    }

    /// Whether a ticket that it made may still be good.
    fn is_young(&self, now: SystemTime) -> bool {
        !self.is_older(now, ROTATION + LIFETIME)
    }
}

/// A length for HKDF.
struct Bytes(usize);

impl aws_lc_rs::hkdf::KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
enum KeyFault {
    #[error("ticket-keys = {path:?} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Exposed(CertificateFault),
    #[error(
        "{path:?} is no key for session tickets: it holds {length} bytes, not {MIN_SECRET} to {MAX_SECRET} random ones; \
         `openssl rand 48` makes some"
    )]
    Length { path: PathBuf, length: usize },
    #[error("{path:?} is no key for session tickets: all of its bytes are the same")]
    Constant { path: PathBuf },
    #[error("there is no key for session tickets in the directory {0:?}")]
    Empty(PathBuf),
}

/// The secrets of a file, or of a directory's files: the last by name first. Names that start with a dot are left out.
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

/// What a ticket is bound to.
fn bound(name: &[u8; NAME], context: &[u8]) -> Vec<u8> {
    [PURPOSE, name, context].concat()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

const PURPOSE: &[u8] = b"penstock session ticket 1";

/// Length of a key's name, with which a ticket starts.
const NAME: usize = 16;

/// A ticket is good for so long. RFC 8446 allows a week; who gets a key can read what was resumed with it.
const LIFETIME: Duration = Duration::from_hours(12);

/// Longest session that fits a ticket.
const MAX_SESSION: usize = 16 * 1024;

/// Our own keys encrypt for so long.
const ROTATION: Duration = Duration::from_hours(6);

/// How often files are read again.
const PERIOD: Duration = Duration::from_secs(2);

const MIN_SECRET: usize = 32;
const MAX_SECRET: usize = 1024;

/// Keys that are kept of one source.
const MAX_KEYS: usize = 64;

#[cfg(test)]
mod tests;
