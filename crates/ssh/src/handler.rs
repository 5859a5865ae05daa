//! What the SSH library calls us for while a connection lives.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use logic::fleet::ending::{Failure, Phase, Reason};
use logic::identity::changed_anew;
use logic::ssh::key::PublicKey;
use russh::client::{ChannelOpenHandle, DisconnectReason, Handle, Msg, Session as Library};
use russh::keys::PublicKeyOrCertificate;
use russh::{Channel, ChannelId, ChannelOpenFailure, Names};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::facts::{Facts, Negotiated};
use crate::judge::{Judge, Offered, Place, Verdict};
use crate::listen::Listeners;
use crate::refusal::Refusals;
use crate::stream::Stream;
use crate::target::Purpose;
use crate::trouble::{failure, harmless, of};
use crate::wire::{Heard, Line};

/// The callbacks of one connection.
pub(crate) struct Handler {
    pub(crate) name: Arc<str>,
    pub(crate) judge: Arc<dyn Judge>,
    pub(crate) place: Place,
    /// An RSA key of the host with fewer bits is refused.
    pub(crate) rsa_bits: usize,
    /// What the judge accepted.
    pub(crate) accepted: Option<Offered>,
    pub(crate) heard: Arc<Heard>,
    pub(crate) shared: Arc<Shared>,
    /// Keys that the server announced go here, to be proved.
    pub(crate) announced: mpsc::Sender<Vec<russh::keys::PublicKey>>,
}

/// What the callbacks learn and the session tells.
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) facts: Mutex<Facts>,
    /// Why the connection ended.
    pub(crate) ended: watch::Sender<Option<Failure>>,
    /// Ports and sockets on which the server listens for us.
    pub(crate) listeners: Listeners,
    /// What the connection is for.
    pub(crate) purpose: Purpose,
    /// The connection, once it is logged in and for as long as somebody uses it.
    pub(crate) handle: OnceLock<Weak<Handle<Handler>>>,
    /// What holds it for as long.
    pub(crate) line: OnceLock<Weak<Line>>,
    /// Why the server could not connect for us.
    pub(crate) refusals: Refusals,
}

impl Shared {
    pub(crate) fn new(name: Arc<str>, purpose: Purpose) -> Self {
        Self {
            purpose,
            handle: OnceLock::new(),
            line: OnceLock::new(),
            refusals: Refusals::default(),
            name,
            facts: Mutex::new(Facts::default()),
            ended: watch::Sender::new(None),
            listeners: Listeners::default(),
        }
    }

    /// For what is opened on the connection.
    fn line(&self) -> Option<Arc<Line>> {
        self.line.get().and_then(Weak::upgrade)
    }

    pub(crate) fn note(&self, note: impl FnOnce(&mut Facts)) {
        note(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The failure that `fault` is. Where the library knows only that the connection is gone, the reason that it gave to
    /// the callbacks is told, which may come a moment later.
    pub(crate) async fn why(&self, phase: Phase, fault: &russh::Error) -> Failure {
        use russh::Error::{Disconnect, HUP, RecvError, SendError};
        if matches!(fault, Disconnect | HUP | RecvError | SendError)
            && let Some(ended) = self.ended_soon().await
        {
            return Failure { phase, remote: failure(phase, ended.reason, String::new()).remote, ..ended };
        }
        of(phase, fault, &self.name)
    }

    /// Why the connection ended, if it did.
    pub(crate) async fn ended_soon(&self) -> Option<Failure> {
        let mut ended = self.ended.subscribe();
        timeout(SOON, ended.wait_for(Option::is_some)).await.ok()?.ok()?.clone()
    }

    fn end(&self, failure: Failure) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(failure);
            }
            first
        });
    }
}

/// What ends a connection from inside a callback.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The library's own.
    Library(russh::Error),
    /// The judge refused the host.
    Refused(Failure),
}

impl From<russh::Error> for Fault {
    fn from(fault: russh::Error) -> Self {
        Self::Library(fault)
    }
}

impl russh::client::Handler for Handler {
    type Error = Fault;

    /// Called at every key exchange; the version of the library that comes from its registry does so at the first one alone.
    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, Fault> {
        let offered = match offered {
            PublicKeyOrCertificate::PublicKey { key, .. } => Offered::Key(logical(key)?),
            PublicKeyOrCertificate::Certificate(certificate) => {
                let blob = certificate.to_bytes().map_err(russh::Error::from)?;
                Offered::Certificate(PublicKey::from_blob(&blob).map_err(|_| russh::Error::CouldNotReadKey)?)
            }
        };
        let (Offered::Key(key) | Offered::Certificate(key)) = &offered;
        if let Some(accepted) = &self.accepted {
            if *accepted == offered {
                return Ok(true);
            }
            let (Offered::Key(before) | Offered::Certificate(before)) = accepted;
            return refused(Phase::Run, changed_anew(&self.name, before, key));
        }
        if let Some(bits) = key.rsa_bits().filter(|bits| *bits < self.rsa_bits) {
            return Err(Fault::Refused(too_short(&self.name, bits, self.rsa_bits)));
        }
        let verdict = self.judge.judge(&self.name, &self.place, &offered).await;
        self.shared.note(|facts| facts.identity = Some(offered.clone()));
        if let Verdict::Accepted { note } = &verdict {
            self.accepted = Some(offered);
            self.shared.note(|facts| facts.note.clone_from(note));
        }
        refused(Phase::Identity, verdict)
    }

    async fn kex_done(&mut self, _: Option<&[u8]>, names: &Names, _: &mut Library) -> Result<(), Fault> {
        let negotiated = Negotiated::new(names);
        let server = self.heard.version().unwrap_or_default();
        self.shared.note(|facts| {
            // Keys exchanged anew say nothing of strictness: that was settled the first time.
            let strict = facts.negotiated.as_ref().map(|first| first.strict);
            facts.negotiated = Some(Negotiated { strict: strict.unwrap_or(negotiated.strict), ..negotiated });
            if facts.server.is_empty() {
                facts.server = harmless(&server).trim_matches('"').to_owned();
            }
        });
        Ok(())
    }

    async fn auth_banner(&mut self, banner: &str, _: &mut Library) -> Result<(), Fault> {
        self.shared.note(|facts| {
            let room = LONGEST_BANNER.saturating_sub(facts.banner.len());
            facts.banner.extend(banner.chars().take(room));
        });
        Ok(())
    }

    async fn openssh_ext_host_keys_announced(
        &mut self,
        keys: Vec<russh::keys::PublicKey>,
        _: &mut Library,
    ) -> Result<(), Fault> {
        let _ = self.announced.try_send(keys);
        Ok(())
    }

    async fn channel_open_failure(
        &mut self,
        _: ChannelId,
        reason: ChannelOpenFailure,
        words: &str,
        _: &str,
        _: &mut Library,
    ) -> Result<(), Fault> {
        if matches!(reason, ChannelOpenFailure::ConnectFailed) {
            self.shared.refusals.tell(words).await;
        }
        Ok(())
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        channel: Channel<Msg>,
        address: &str,
        port: u32,
        from: &str,
        from_port: u32,
        reply: ChannelOpenHandle,
        _: &mut Library,
    ) -> Result<(), Fault> {
        let from = format!("{}:{from_port}", harmless(from).trim_matches('"'));
        let Some(room) = self.shared.listeners.tcp(address, port) else {
            return refuse(reply).await;
        };
        admit(room, channel, self.shared.line(), from, reply).await;
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _: &mut Library,
    ) -> Result<(), Fault> {
        let Some(room) = self.shared.listeners.unix(path) else {
            return refuse(reply).await;
        };
        admit(room, channel, self.shared.line(), String::new(), reply).await;
        Ok(())
    }

    // The library accepts these by default; a server has no business to open any of them.

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Library,
    ) -> Result<(), Fault> {
        refuse(reply).await
    }

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Library,
    ) -> Result<(), Fault> {
        refuse(reply).await
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Library,
    ) -> Result<(), Fault> {
        refuse(reply).await
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        reply: ChannelOpenHandle,
        _: &mut Library,
    ) -> Result<(), Fault> {
        refuse(reply).await
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Library,
    ) -> Result<(), Fault> {
        refuse(reply).await
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Fault>) -> Result<(), Fault> {
        match reason {
            DisconnectReason::ReceivedDisconnect(said) => {
                let detail = format!("{} ended the connection: {}", self.name, harmless(&said.message));
                self.shared.end(failure(Phase::Run, Reason::Lost, detail));
                Ok(())
            }
            DisconnectReason::Error(Fault::Library(fault)) => {
                self.shared.end(of(Phase::Run, &fault, &self.name));
                Err(Fault::Library(fault))
            }
            DisconnectReason::Error(Fault::Refused(failure)) => {
                self.shared.end(failure.clone());
                Err(Fault::Refused(failure))
            }
        }
    }
}

impl Drop for Handler {
    /// The library's task is over, in whatever way.
    fn drop(&mut self) {
        self.shared.listeners.close();
        self.shared.end(failure(
            Phase::Run,
            Reason::Lost,
            format!("the connection to {} was closed", self.name),
        ));
    }
}

/// A verdict as the library wants it: what refuses a host ends the connection.
fn refused(phase: Phase, verdict: Verdict) -> Result<bool, Fault> {
    let Verdict::Refused { reason, message, advice } = verdict else { return Ok(true) };
    let mut failure = failure(phase, reason, message);
    failure.advice = (!advice.is_empty()).then_some(advice);
    Err(Fault::Refused(failure))
}

/// A host key that anybody who is rich enough could forge proves nothing, whoever it is pinned for.
fn too_short(name: &str, bits: usize, least: usize) -> Failure {
    let detail = format!(
        "{name} showed an RSA key of {bits} bits, and RequiredRSASize asks for {least}; nothing was sent"
    );
    let mut refused = failure(Phase::Identity, Reason::KeyRefused, detail);
    refused.advice =
        Some(format!("let {name} have an Ed25519 key, or lower RequiredRSASize for it in ~/.ssh/config"));
    refused
}

/// Our form of a key.
pub(crate) fn logical(key: &russh::keys::PublicKey) -> Result<PublicKey, russh::Error> {
    let blob = key.to_bytes()?;
    PublicKey::from_blob(&blob).map_err(|_| russh::Error::CouldNotReadKey)
}

/// For what the server has no business to open.
async fn refuse(reply: ChannelOpenHandle) -> Result<(), Fault> {
    reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
    Ok(())
}

async fn admit(
    room: mpsc::Sender<(Stream, String)>,
    channel: Channel<Msg>,
    line: Option<Arc<Line>>,
    from: String,
    reply: ChannelOpenHandle,
) {
    match room.try_reserve() {
        Ok(place) => {
            reply.accept().await;
            place.send((Stream::new(channel, line), from));
        }
        Err(_) => reply.reject(ChannelOpenFailure::ResourceShortage).await,
    }
}

/// The library tells a caller that a connection is gone a moment before it says why.
const SOON: Duration = Duration::from_secs(1);

/// Of the text before authentication so many characters are kept.
const LONGEST_BANNER: usize = 4096;
