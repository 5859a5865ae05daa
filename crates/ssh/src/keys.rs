//! The keys of this process, shared by all its connections: each file is read once, each passphrase is asked once, and
//! each agent gets only a few connections.

mod ask;
pub(crate) mod certificate;
mod fault;
pub(crate) mod file;
mod plan;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hosts::ssh::key::Fingerprint;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::Certificate;
use tokio::sync::Mutex as AsyncMutex;

pub use ask::{Answered, Ask, AskError, NoPrompt, Question, UserPrompt, restore_terminal};
pub use fault::{Fault as KeyFileFault, KeyFault};
pub use file::{KeyInFile, PrivatePart, key_in_file};
pub use plan::{DEFAULT_IDENTITIES, Identity, KeyPlan, Method, Named, OtherKeys};

use crate::agent::{Agent, AgentLimits};
use fault::Fault;
use file::{KeyFile, Private, Stamp};

/// Checks that the SSH library, which makes our log-ins, can read a public key.
///
/// # Errors
/// The message of the library.
pub fn check_public(key: &hosts::ssh::key::PublicKey) -> Result<(), String> {
    let read = russh::keys::ssh_key::PublicKey::from_openssh(&key.to_string());
    read.map(|_| ()).map_err(|error| error.to_string())
}

/// Key files, certificates and agents. On drop, decrypted keys are overwritten in memory.
pub struct Keys {
    asked: Arc<Asked>,
    limits: AgentLimits,
    files: Mutex<HashMap<PathBuf, Slot<Found>>>,
    certificates: Mutex<HashMap<PathBuf, Slot<FoundCertificate>>>,
    agents: Mutex<HashMap<PathBuf, Arc<Agent>>>,
    worked: Mutex<HashMap<Fingerprint, u32>>,
}

/// A key file and the state of its decryption.
pub(crate) struct LoadedKey {
    pub(crate) file: KeyFile,
    opened: Arc<AsyncMutex<Opened>>,
}

/// The person who is asked, and a lock so that only one question is open at a time.
struct Asked {
    person: Arc<dyn Ask>,
    turn: AsyncMutex<()>,
}

enum Opened {
    NotYet,
    Now(Arc<PrivateKey>),
    Never(KeyFault),
}

type Found = Result<Arc<LoadedKey>, KeyFault>;
type FoundCertificate = Result<Arc<Certificate>, KeyFault>;

/// The content of a file, the state of the file when it was read, and the time of the last comparison with the file.
struct Read<T> {
    stamp: Option<Stamp>,
    looked: Instant,
    value: T,
}

type Slot<T> = Arc<AsyncMutex<Option<Read<T>>>>;

impl Keys {
    /// Creates a store without keys. It asks for passphrases on this terminal or desktop.
    #[must_use]
    pub fn new() -> Self {
        Self::asking(Arc::new(UserPrompt::from_environment()), AgentLimits::default())
    }

    /// Creates a store without keys. It asks `person` for passphrases.
    #[must_use]
    pub fn asking(person: Arc<dyn Ask>, limits: AgentLimits) -> Self {
        Self {
            asked: Arc::new(Asked { person, turn: AsyncMutex::new(()) }),
            limits,
            files: Mutex::default(),
            certificates: Mutex::default(),
            agents: Mutex::default(),
            worked: Mutex::default(),
        }
    }

    /// Returns the key file at `path`. Reads it once, and again if the file has changed.
    pub(crate) async fn file(&self, path: &Path) -> Found {
        read_once(&self.files, path, |path| {
            KeyFile::read(path)
                .map(|file| Arc::new(LoadedKey { file, opened: Arc::new(AsyncMutex::new(Opened::NotYet)) }))
        })
        .await
        .unwrap_or_else(|| Err(Fault::Unreadable("the program is ending".to_owned()).at(path)))
    }

    /// Returns the certificate at `path`. Reads it once, and again if the file has changed.
    pub(crate) async fn certificate(&self, path: &Path) -> FoundCertificate {
        read_once(&self.certificates, path, |path| certificate::read(path).map(Arc::new))
            .await
            .unwrap_or_else(|| Err(Fault::Unreadable("the program is ending".to_owned()).at(path)))
    }

    pub(crate) fn agent(&self, socket: &Path) -> Arc<Agent> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = agents
            .entry(socket.to_owned())
            .or_insert_with(|| Arc::new(Agent::new(socket.to_owned(), self.limits.clone())));
        Arc::clone(agent)
    }

    /// Returns the private key of a key file. Asks for the passphrase if needed, once for all connections.
    pub(crate) async fn open(&self, key: &Arc<LoadedKey>) -> Result<Arc<PrivateKey>, KeyFault> {
        let path = &key.file.path;
        match &key.file.private {
            Private::Open(private) => return Ok(Arc::clone(private)),
            Private::Elsewhere => return Err(Fault::NoPrivateHalf.at(path)),
            Private::Locked(_) => {}
        }
        // The question runs in its own task: it stays on the terminal if the connection that caused it gives up.
        let (asked, key) = (Arc::clone(&self.asked), Arc::clone(key));
        let opening = tokio::spawn(async move {
            let mut opened = key.opened.lock().await;
            if matches!(*opened, Opened::NotYet) {
                let _turn = asked.turn.lock().await;
                *opened = match asked.passphrase_of(&key).await {
                    Ok(private) => Opened::Now(private),
                    Err(fault) => Opened::Never(fault),
                };
            }
            match &*opened {
                Opened::Now(private) => Ok(Arc::clone(private)),
                Opened::Never(fault) => Err(fault.clone()),
                Opened::NotYet => Err(Fault::NoPassphrase(AskError::Cancelled).at(&key.file.path)),
            }
        });
        opening.await.unwrap_or_else(|_| Err(Fault::NoPassphrase(AskError::Cancelled).at(path)))
    }

    /// Asks a question that is not a passphrase. Only one question of either kind is open at a time.
    pub(crate) async fn ask(&self, question: Question) -> Result<zeroize::Zeroizing<String>, AskError> {
        let _turn = self.asked.turn.lock().await;
        let person = Arc::clone(&self.asked.person);
        on_a_thread(move || person.ask(&question)).await.unwrap_or(Err(AskError::Cancelled))
    }

    /// Returns the number of hosts that have accepted this key.
    pub(crate) fn worked(&self, key: Fingerprint) -> u32 {
        self.worked.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied().unwrap_or(0)
    }

    pub(crate) fn note_worked(&self, key: Fingerprint) {
        *self.worked.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Asked {
    async fn passphrase_of(&self, key: &Arc<LoadedKey>) -> Result<Arc<PrivateKey>, KeyFault> {
        let path = key.file.path.clone();
        let shown = text::terminal::escaped(&path.to_string_lossy(), 200);
        for attempt in 1..=TRIES {
            let again = if attempt == 1 { "" } else { "wrong passphrase; " };
            let text = format!("{again}passphrase of the key {shown}: ");
            let (person, key) = (Arc::clone(&self.person), Arc::clone(key));
            let opened = on_a_thread(move || {
                let passphrase = person
                    .ask(&Question { text, answer: Answered::Unseen })
                    .map_err(|error| Fault::NoPassphrase(error).at(&key.file.path))?;
                let Private::Locked(text) = &key.file.private else {
                    return Err(Fault::NoPrivateHalf.at(&key.file.path));
                };
                // An empty answer is no attempt: as in ssh, the next key follows.
                if passphrase.is_empty() {
                    return Err(Fault::NoPassphrase(AskError::Cancelled).at(&key.file.path));
                }
                let private = file::open(text, &key.file.path, &passphrase)?;
                match &key.file.public {
                    Some(public) if public.key_data() != private.public_key().key_data() => {
                        Err(Fault::OtherHalf(key.file.path.clone()).at(&key.file.path))
                    }
                    _ => Ok(Arc::new(private)),
                }
            })
            .await;
            match opened {
                Some(Err(KeyFault { fault: Fault::WrongPassphrase, .. })) => {}
                Some(result) => return result,
                None => return Err(Fault::NoPassphrase(AskError::Cancelled).at(&path)),
            }
        }
        Err(Fault::WrongPassphrase.at(&path))
    }
}

/// Runs work that waits for a person on a thread that does not delay the end of the program. `None` if the work
/// panicked, or if there is no thread.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("ask".to_owned()).spawn(move || {
        let _ = done.send(work());
    });
    if thread.is_err() {
        return None;
    }
    result.await.ok()
}

/// Reads the file at `path` with `read`, once for all tasks that ask at the same time. `None` if the program is ending.
async fn read_once<T: Clone + Send + 'static>(
    slots: &Mutex<HashMap<PathBuf, Slot<T>>>,
    path: &Path,
    read: fn(&Path) -> T,
) -> Option<T> {
    let slot = {
        let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(path.to_owned()).or_default())
    };
    let mut slot = slot.lock().await;
    let known = slot.as_ref().map(|known| (known.looked, known.stamp));
    if let (Some(known), Some((looked, _))) = (&*slot, known)
        && looked.elapsed() < LOOK_AGAIN
    {
        return Some(known.value.clone());
    }
    let before = known.map(|(_, stamp)| stamp);
    let owned = path.to_owned();
    let (stamp, value) = tokio::task::spawn_blocking(move || {
        let stamp = KeyFile::stamp(&owned);
        let same = before == Some(stamp) && stamp.is_some();
        (stamp, (!same).then(|| read(&owned)))
    })
    .await
    .ok()?;
    let looked = Instant::now();
    match (value, &mut *slot) {
        (Some(value), slot) => *slot = Some(Read { stamp, looked, value }),
        (None, Some(known)) => known.looked = looked,
        (None, None) => {}
    }
    slot.as_ref().map(|known| known.value.clone())
}

/// Maximum number of wrong passphrases, as in ssh(1).
const TRIES: u32 = 3;
/// Maximum age of a file's content before it is compared with the file again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
