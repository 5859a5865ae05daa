//! What the old and the new process of an upgrade say to each other. Each message is one packet of JSON, with descriptors
//! beside it.
//!
//! Hello, welcome, refused and failed stay as they are in all versions, so that any two of them understand why they do not
//! fit together. A message may get new fields: fields that a version does not know are ignored.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use proxy::given::{Answer, Carried, OfferId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use state::listen::HandedKey;
use sys::message_socket::{LONGEST, MOST_DESCRIPTORS, MessageSocket, Whole};

/// Version of the protocol that this program speaks, and the oldest that it understands.
pub(crate) const NEWEST: u32 = 1;
pub(crate) const OLDEST: u32 = 1;

/// Version of the hand-over of sessions.
pub(crate) const SESSIONS: u32 = 2;

/// The first one with sessions that began as requests.
pub(crate) const REQUESTS: u32 = 2;

/// State beside that of `state::kept`: ticket keys.
pub(crate) const TICKETS: &str = "tickets";

/// First word of a hello.
pub(crate) const MAGIC: &str = "penstock-upgrade";

/// Time for a message to fit into the buffer of a process that reads.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// Longest explanation that is sent, in characters.
const LONGEST_WHY: usize = 4000;

/// Most messages with sockets: a configuration has far fewer addresses.
pub(crate) const MOST_OFFERS: usize = 20_000;

/// What the new process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub(crate) enum FromNew {
    Hello {
        magic: String,
        oldest: u32,
        newest: u32,
        version: String,
        pid: u32,
        /// Version of [`FromOld::Session`] that it understands; `None`: it goes on with no session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sessions: Option<u32>,
    },
    /// It ends.
    Failed { why: String },
    /// It has all that it needs to serve. `taken`: the addresses that it listens on.
    Ready { taken: Vec<Key> },
    /// It has taken the state over.
    Prepared,
    /// It accepts clients.
    Serving,
    /// Whether it goes on with a session. Before that it moves no byte of it.
    Answered { id: OfferId, answer: Answer },
}

/// What the old process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub(crate) enum FromOld {
    Welcome {
        protocol: u32,
        version: String,
        pid: u32,
    },
    /// The new process must end.
    Refused {
        why: String,
    },
    /// Descriptors follow with it. More of one kind may come in several messages.
    Offer(Offer),
    /// There is no further offer.
    Offered,
    /// State, in one file in memory for each kind.
    State {
        kinds: Vec<String>,
    },
    /// Accept clients.
    Go,
    /// What only one process may have is free: the store of state, the store of one-time passwords, orders of certificates.
    Released,
    /// How many sessions the old process still has, once a second. A file in memory beside it has what they add to the counters.
    Left {
        sessions: usize,
    },
    /// A session that the new process may go on with. It is offered after [`FromOld::Released`], and only if the new process has said
    /// in its hello that it takes sessions (of [`REQUESTS`]: such that began as requests, too). The connection of the client and the one to the backend come with the message. The old process moves no byte of it until the answer.
    Session {
        id: OfferId,
        session: Box<Carried>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub(crate) enum Offer {
    Listener {
        key: Key,
        file: Option<SocketFile>,
    },
    Systemd {
        name: String,
    },
    Control {
        file: SocketFile,
    },
    Remote {
        bind: String,
    },
    Admin {
        bind: String,
        file: Option<SocketFile>,
    },
    PidFile {
        path: String,
    },
    /// Of a later version.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) listener: String,
    pub(crate) bind: String,
    pub(crate) transport: String,
}

/// Path of a Unix socket, with what identifies its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketFile {
    pub(crate) path: String,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl From<HandedKey> for Key {
    fn from(HandedKey { listener, bind, transport }: HandedKey) -> Self {
        Self { listener, bind, transport }
    }
}

impl From<Key> for HandedKey {
    fn from(Key { listener, bind, transport }: Key) -> Self {
        Self { listener, bind, transport }
    }
}

impl SocketFile {
    pub(crate) fn of(file: &sys::socket::SocketFile) -> Option<Self> {
        let ((device, inode), path) = (file.identity()?, file.path().to_str()?.to_owned());
        Some(Self { path, device, inode })
    }

    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

/// Reason why a message did not come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("it has closed the connection")]
    Closed,
    #[error("it has said nothing for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("it does not speak the protocol of an upgrade: {0}")]
    Foreign(String),
    #[error("the connection to it failed: {0}")]
    Io(#[from] io::Error),
}

/// One end of the conversation.
#[derive(Debug)]
pub(crate) struct Link(MessageSocket);

impl Link {
    pub(crate) fn new(socket: MessageSocket) -> Self {
        Self(socket)
    }

    pub(crate) fn say(&self, message: &impl Serialize) -> Result<(), LinkError> {
        self.give(message, &[])
    }

    /// Sends a message with descriptors, in several messages if they are many.
    pub(crate) fn give(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        if descriptors.is_empty() {
            return self.send(&bytes, &[]);
        }
        descriptors.chunks(MOST_DESCRIPTORS).try_for_each(|part| self.send(&bytes, part))
    }

    /// Like [`Self::give`] for a few descriptors, but never waits.
    pub(crate) fn give_now(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        self.send_within(&bytes, descriptors, Duration::ZERO)
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        self.send_within(bytes, descriptors, SEND_LIMIT)
    }

    fn send_within(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<(), LinkError> {
        self.0.send(bytes, descriptors, limit).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LinkError::Closed,
            _ => LinkError::Io(error),
        })
    }

    pub(crate) fn hear<T: DeserializeOwned>(&self, limit: Duration) -> Result<(T, Vec<OwnedFd>), LinkError> {
        match self.hear_all(limit)? {
            (heard, Some(descriptors)) => Ok((heard, descriptors)),
            (_, None) => Err(LinkError::Io(io::Error::from_raw_os_error(nix::libc::EMFILE))),
        }
    }

    /// Like [`Self::hear`]; without the descriptors if this process may not open so many.
    pub(crate) fn hear_all<T: DeserializeOwned>(
        &self,
        limit: Duration,
    ) -> Result<(T, Option<Vec<OwnedFd>>), LinkError> {
        let message = match self.0.receive(limit) {
            Ok(Some(message)) => message,
            Ok(None) => return Err(LinkError::Closed),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(LinkError::Silent(limit)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(LinkError::Foreign(format!("a message is longer than {LONGEST} bytes")));
            }
            Err(error) => return Err(error.into()),
        };
        let heard =
            serde_json::from_slice(&message.bytes).map_err(|error| LinkError::Foreign(error.to_string()))?;
        Ok((heard, (message.whole == Whole::Yes).then_some(message.descriptors)))
    }
}

/// Shortens an explanation, so that its message is not too long.
pub(crate) fn shortened(why: &str) -> String {
    why.chars().take(LONGEST_WHY).collect()
}

#[cfg(test)]
mod tests {
    use proxy::given::request::{CarriedRequest, LONGEST as LONGEST_REQUEST};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_message_of_a_later_version_is_understood_as_far_as_it_goes() {
        let text = r#"{"say":"offer","what":"listener","key":{"listener":"web","bind":":80","transport":"stream","more":1},"file":null,"new":[]}"#;
        let heard: FromOld = serde_json::from_str(text).unwrap();
        let FromOld::Offer(Offer::Listener { key, file: None }) = heard else { panic!("{heard:?}") };
        assert_eq!((&*key.listener, &*key.bind, &*key.transport), ("web", ":80", "stream"));
        let hello = r#"{"say":"hello","magic":"m","oldest":1,"newest":1,"version":"1","pid":7}"#;
        let heard: FromNew = serde_json::from_str(hello).unwrap();
        assert!(matches!(heard, FromNew::Hello { sessions: None, pid: 7, .. }), "{heard:?}");
        let session =
            r#"{"say":"session","id":{"worker":1,"number":2,"more":3},"session":{"listener":"db","new":4}}"#;
        let heard: FromOld = serde_json::from_str(session).unwrap();
        let FromOld::Session { session, .. } = heard else { panic!("{heard:?}") };
        assert_eq!(*session, Carried { listener: "db".to_owned(), ..Carried::default() });
        let unknown: FromOld = serde_json::from_str(r#"{"say":"offer","what":"quic"}"#).unwrap();
        assert!(matches!(unknown, FromOld::Offer(Offer::Unknown)));
        assert!(serde_json::from_str::<FromOld>(r#"{"say":"sing"}"#).is_err());
    }

    #[test]
    fn a_session_with_the_longest_request_has_room_in_a_message_and_comes_out_as_it_went_in() {
        let name = "n".repeat(500);
        for byte in ['\u{ff}', '"', '\\'] {
            let request = CarriedRequest {
                head: byte.to_string().repeat(LONGEST_REQUEST),
                id: "\u{ff}".repeat(500),
                failed: vec!["connect-timeout".to_owned(); 4],
                ..CarriedRequest::default()
            };
            let [listener, pool, backend] = [(); 3].map(|()| name.clone());
            let session = Carried { listener, pool, backend, request: Some(request), ..Carried::default() };
            let id = OfferId { worker: usize::MAX, number: u64::MAX };
            let message = FromOld::Session { id, session: Box::new(session.clone()) };
            let bytes = serde_json::to_vec(&message).unwrap();
            assert!(bytes.len() <= LONGEST, "{}", bytes.len());
            let Ok(FromOld::Session { session: heard, .. }) = serde_json::from_slice(&bytes) else {
                panic!()
            };
            assert_eq!(*heard, session);
        }
    }

    #[test]
    fn what_is_not_heard_is_explained() {
        let (one, other) = MessageSocket::pair().unwrap();
        let link = Link::new(one);
        let why = |link: &Link| link.hear::<FromNew>(SHORT).unwrap_err().to_string();
        assert!(why(&link).starts_with("it has said nothing"));
        other.send(b"GET / HTTP/1.1", &[], SHORT).unwrap();
        assert!(why(&link).starts_with("it does not speak the protocol"));
        drop(other);
        assert_eq!(why(&link), "it has closed the connection");
    }

    #[test]
    fn descriptors_of_one_offer_come_in_as_many_messages_as_they_need() {
        let (one, other) = MessageSocket::pair().unwrap();
        let (one, other) = (Link::new(one), Link::new(other));
        let file = tempfile::tempfile().unwrap();
        let all = vec![std::os::fd::AsFd::as_fd(&file); MOST_DESCRIPTORS + 3];
        let offer = Offer::Systemd { name: "x".to_owned() };
        one.give(&FromOld::Offer(offer), &all).unwrap();
        let counts = [(); 2].map(|()| other.hear::<FromOld>(SHORT).unwrap().1.len());
        assert_eq!(counts, [MOST_DESCRIPTORS, 3]);
    }
}
