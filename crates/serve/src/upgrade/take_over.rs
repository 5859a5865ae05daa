//! The new process of an upgrade: hears from the old one what there is, and serves when it is told to.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use proxy::given::{Answer, Carried, OfferId};
use state::kept::traffic::Traffic;
use state::kept::{self, Kind};
use state::listen::{BoundKey, Handed, HandedKey, Passed, SocketPath};
use state::lock::lock;
use state::upgrade::Older;
use sys::message_socket::MessageSocket;
use sys::pid_file::PidFile;
use sys::socket::Inherited;

use super::protocol::{FromNew, FromOld, Key, Link, LinkError, MAGIC, MOST_OFFERS, NEWEST, OLDEST, Offer};
use super::protocol::{SESSIONS, SocketFile, shortened};

/// Time for each message of the old process. It has a limit of its own for the whole.
const LIMIT: Duration = Duration::from_secs(60);

/// Time for the old process to free what only one may have.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// The connection to the old process, and what it has passed on.
#[derive(Debug)]
pub struct TakeOver {
    link: Link,
    offers: Mutex<Vec<(Offer, Vec<OwnedFd>)>>,
    older: Mutex<Option<Older>>,
}

#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    #[error(
        "--take-over is for the new process of `penstock ctl upgrade`: standard input is no connection to an old one ({0})"
    )]
    NoConnection(#[source] io::Error),
    #[error("the old process refuses: {0}")]
    Refused(String),
    #[error(
        "the old process, version {version}, speaks protocol {protocol} of the upgrade, and this version speaks {OLDEST} to {NEWEST}"
    )]
    Version { version: String, protocol: u32 },
    #[error("the old process: {0}")]
    Gone(String),
    #[error("the old process has passed on what cannot be used: {0}")]
    Unusable(String),
}

/// What the old process says about its sessions.
pub(crate) enum OfSessions {
    /// Number of sessions that the old process still has, and what it has counted since its last message.
    Left(usize, Option<Traffic>),
    /// A session to go on with; without its connections if this process may not open more.
    Offered { id: OfferId, session: Box<Carried>, connections: Option<[OwnedFd; 2]> },
}

/// What the old process says to one that is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Go,
    /// It has ended, so there is nothing to wait for.
    OldIsGone,
}

impl TakeOver {
    /// Takes the connection from standard input.
    pub fn from_standard_input() -> Result<Arc<Self>, TakeOverError> {
        let socket = MessageSocket::take_standard_input().map_err(TakeOverError::NoConnection)?;
        Ok(Arc::new(Self { link: Link::new(socket), offers: Mutex::default(), older: Mutex::default() }))
    }

    /// Tells the old process why this one ends.
    pub fn failed(&self, why: &str) {
        // Standard error has it, too.
        let _ = self.link.say(&FromNew::Failed { why: shortened(why) });
    }

    /// Says hello, and hears what there is to take over. Returns the listening sockets.
    pub(crate) fn greet(&self) -> Result<Passed, TakeOverError> {
        let (oldest, newest) = (OLDEST, NEWEST);
        let (magic, version) = (MAGIC.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let (pid, sessions) = (std::process::id(), Some(SESSIONS));
        self.say(&FromNew::Hello { magic, oldest, newest, version, pid, sessions })?;
        match self.hear(LIMIT)? {
            (FromOld::Welcome { protocol, version, pid }, _) => {
                if !(OLDEST..=NEWEST).contains(&protocol) {
                    return Err(TakeOverError::Version { version, protocol });
                }
                *lock(&self.older) = Some(Older { pid, version, since: SystemTime::now(), sessions: None });
            }
            (other, _) => return Err(out_of_turn(&other)),
        }
        let mut all: Vec<(Offer, Vec<OwnedFd>)> = Vec::new();
        loop {
            match self.hear(LIMIT)? {
                (FromOld::Offered, _) => break,
                (FromOld::Offer(Offer::Unknown), _) => {}
                (FromOld::Offer(offer), descriptors) => match all.last_mut() {
                    Some((last, known)) if *last == offer => known.extend(descriptors),
                    _ => all.push((offer, descriptors)),
                },
                (other, _) => return Err(out_of_turn(&other)),
            }
            if all.len() > MOST_OFFERS {
                return Err(TakeOverError::Unusable(format!("more than {MOST_OFFERS} addresses")));
            }
        }
        let mut passed = Passed::default();
        let mut others = Vec::new();
        for (offer, descriptors) in all {
            match offer {
                Offer::Listener { key, file } => {
                    let file = file.map(|file| (file.path.clone(), file.identity()));
                    passed.hand(Handed { key: HandedKey::from(key), sockets: descriptors, file });
                }
                Offer::Systemd { name } => {
                    for socket in descriptors {
                        let unusable =
                            |why: String| TakeOverError::Unusable(format!("systemd:{name}: {why}"));
                        let address =
                            sys::socket::listening(&socket).map_err(|error| unusable(error.to_string()))?;
                        let address = address.ok_or_else(|| unusable("it does not listen".to_owned()))?;
                        passed.add(Inherited { name: name.clone(), socket, address });
                    }
                }
                offer => others.push((offer, descriptors)),
            }
        }
        *lock(&self.offers) = others;
        Ok(passed)
    }

    /// The old process, which says who it is in its welcome.
    pub(crate) fn older(&self) -> Option<Older> {
        lock(&self.older).clone()
    }

    /// The control socket of the old process, if it is at this path.
    pub(crate) fn control(&self, path: &Path) -> Option<(UnixListener, SocketPath)> {
        let is_it = |offer: &Offer| matches!(offer, Offer::Control { file } if Path::new(&file.path) == path);
        let (offer, socket) = self.take(is_it)?;
        let Offer::Control { file } = offer else { return None };
        Some((UnixListener::from(socket), present(&file)?))
    }

    /// The listener of control over the network.
    pub(crate) fn remote(&self, bind: &str) -> Option<std::net::TcpListener> {
        let (_, socket) = self.take(|offer| matches!(offer, Offer::Remote { bind: own } if own == bind))?;
        Some(socket.into())
    }

    /// The admin listener, with the path of a Unix socket.
    pub(crate) fn admin(&self, bind: &str) -> Option<(OwnedFd, Option<SocketPath>)> {
        let (offer, socket) =
            self.take(|offer| matches!(offer, Offer::Admin { bind: own, .. } if own == bind))?;
        match offer {
            Offer::Admin { file: None, .. } => Some((socket, None)),
            Offer::Admin { file: Some(file), .. } => Some((socket, Some(present(&file)?))),
            _ => None,
        }
    }

    /// The file with the number of the process. To be called when this process serves: dropping the file removes it.
    pub(crate) fn pid_file(&self, path: &Path) -> Option<PidFile> {
        let is_it = |offer: &Offer| matches!(offer, Offer::PidFile { path: own } if Path::new(own) == path);
        let (_, descriptor) = self.take(is_it)?;
        PidFile::passed_on(path, descriptor)
    }

    /// Whether the old process has the file with the number of the process.
    pub(crate) fn has_pid_file(&self, path: &Path) -> bool {
        let is_it = |offer: &Offer| matches!(offer, Offer::PidFile { path: own } if Path::new(own) == path);
        lock(&self.offers).iter().any(|(offer, _)| is_it(offer))
    }

    /// Says that this process can serve, and hears the state of the old one, by kind.
    pub(crate) fn ready<'a>(
        &self,
        taken: impl Iterator<Item = &'a BoundKey>,
    ) -> Result<Vec<(String, Vec<u8>)>, TakeOverError> {
        let taken = taken.map(|key| Key::from(HandedKey::of(key))).collect();
        self.say(&FromNew::Ready { taken })?;
        let (kinds, files) = match self.hear(LIMIT)? {
            (FromOld::State { kinds }, files) => (kinds, files),
            (other, _) => return Err(out_of_turn(&other)),
        };
        let mut state = Vec::new();
        for (word, file) in kinds.into_iter().zip(files) {
            let mut bytes = Vec::new();
            let limit = kept::MOST_BYTES as u64 + 1;
            let read = File::from(file).take(limit).read_to_end(&mut bytes);
            read.map_err(|error| TakeOverError::Unusable(format!("state {word}: {error}")))?;
            state.push((word, bytes));
        }
        Ok(state)
    }

    /// Says that this process has the state, and waits for the word to serve.
    pub(crate) fn prepared(&self) -> Result<Word, TakeOverError> {
        self.say(&FromNew::Prepared)?;
        match self.link.hear(LIMIT) {
            Ok((FromOld::Go, _)) => Ok(Word::Go),
            Ok((FromOld::Refused { why }, _)) => Err(TakeOverError::Refused(why)),
            Ok((other, _)) => Err(out_of_turn(&other)),
            // Nothing else closes it: an old process that serves on says so.
            Err(LinkError::Closed) => Ok(Word::OldIsGone),
            Err(error) => Err(TakeOverError::Gone(error.to_string())),
        }
    }

    /// Says that this process serves, and waits until the old one has freed what only one may have.
    pub(crate) fn serving(&self) {
        if self.link.say(&FromNew::Serving).is_ok() {
            // Without an answer this process tries to use it all the same, and says what it cannot use.
            let _ = self.link.hear::<FromOld>(RELEASE_LIMIT);
        }
    }

    /// Waits for what the old process says about its sessions. `None` when it has ended.
    pub(crate) fn next(&self) -> Option<OfSessions> {
        // What it has said before its end comes after the news of it, if it had not read all of ours.
        let mut closed = 0;
        loop {
            match self.link.hear_all(LIMIT) {
                Ok((FromOld::Left { sessions }, files)) => {
                    let mut bytes = Vec::new();
                    let file = files.into_iter().flatten().next().map(File::from);
                    let read =
                        file.and_then(|file| file.take(kept::MOST_BYTES as u64).read_to_end(&mut bytes).ok());
                    let counts = read.and_then(|_| kept::unseal(Kind::Traffic, &bytes).ok());
                    return Some(OfSessions::Left(sessions, counts));
                }
                Ok((FromOld::Session { id, session }, connections)) => {
                    let connections = <[OwnedFd; 2]>::try_from(connections.unwrap_or_default()).ok();
                    return Some(OfSessions::Offered { id, session, connections });
                }
                // Of a later version.
                Ok(_) | Err(LinkError::Silent(_) | LinkError::Foreign(_)) => {}
                Err(LinkError::Closed) if closed == 0 => closed = 1,
                Err(_) => return None,
            }
        }
    }

    /// Answers an offer of a session. Returns false if the old process goes on with it, because it does not get the answer.
    pub(crate) fn answer(&self, id: OfferId, answer: Answer) -> bool {
        match self.link.give_now(&FromNew::Answered { id, answer }, &[]) {
            // One that has ended goes on with nothing.
            Ok(()) | Err(LinkError::Closed) => true,
            Err(_) => false,
        }
    }

    fn take(&self, is_it: impl Fn(&Offer) -> bool) -> Option<(Offer, OwnedFd)> {
        let mut offers = lock(&self.offers);
        let at = offers.iter().position(|(offer, descriptors)| is_it(offer) && !descriptors.is_empty())?;
        let (offer, mut descriptors) = offers.remove(at);
        Some((offer, descriptors.swap_remove(0)))
    }

    fn say(&self, message: &FromNew) -> Result<(), TakeOverError> {
        self.link.say(message).map_err(|error| TakeOverError::Gone(error.to_string()))
    }

    fn hear(&self, limit: Duration) -> Result<(FromOld, Vec<OwnedFd>), TakeOverError> {
        match self.link.hear(limit) {
            Ok((FromOld::Refused { why }, _)) => Err(TakeOverError::Refused(why)),
            Ok(heard) => Ok(heard),
            Err(error) => Err(TakeOverError::Gone(error.to_string())),
        }
    }
}

/// The path of a socket whose file is still there.
fn present(file: &SocketFile) -> Option<SocketPath> {
    sys::socket::SocketFile::passed_on(Path::new(&file.path), file.identity()).map(SocketPath)
}

fn out_of_turn(heard: &FromOld) -> TakeOverError {
    let words: String = serde_json::to_string(heard).unwrap_or_default().chars().take(200).collect();
    TakeOverError::Unusable(format!("it said {words}, which does not belong here"))
}
