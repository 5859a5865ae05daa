//! The callbacks that the SSH library calls during a connection.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::identity::changed_anew;
use hosts::ssh::key::PublicKey;
use russh::client::{ChannelOpenHandle, DisconnectReason, Handle, Msg, Session as Library};
use russh::keys::PublicKeyOrCertificate;
use russh::{Channel, ChannelId, ChannelOpenFailure, Names};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::facts::{Facts, Negotiated};
use crate::judge::{HostVerifier, Offered, Place, Verdict};
use crate::listeners::Listeners;
use crate::refusal::Refusals;
use crate::stream::Stream;
use crate::target::Purpose;
use crate::trouble::{failure, of, quoted};
use crate::wire::{Line, ServerText};

pub(crate) struct Handler {
    pub(crate) name: Arc<str>,
    pub(crate) judge: Arc<dyn HostVerifier>,
    pub(crate) place: Place,
    /// Minimum length of an RSA host key in bits; shorter keys are refused.
    pub(crate) rsa_bits: usize,
    pub(crate) accepted: Option<Offered>,
    pub(crate) heard: Arc<ServerText>,
    pub(crate) shared: Arc<Shared>,
    /// Receives the keys that the server announced, for a proof that the server holds them.
    pub(crate) announced: mpsc::Sender<Vec<russh::keys::PublicKey>>,
}

/// Data that the callbacks write and the session reads.
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) facts: Mutex<Facts>,
    /// Reason why the connection has ended; `None` while it is open.
    pub(crate) ended: watch::Sender<Option<Failure>>,
    /// Ports and sockets on which the server listens for this connection.
    pub(crate) listeners: Listeners,
    pub(crate) purpose: Purpose,
    /// The connection, from the log-in on and while it is used.
    pub(crate) handle: OnceLock<Weak<Handle<Handler>>>,
    /// The lifeline of the connection, for the same time as `handle`.
    pub(crate) line: OnceLock<Weak<Line>>,
    /// The server's reasons for connections that it could not open.
    pub(crate) refusals: Refusals,
    /// Text of the server's disconnect message.
    pub(crate) parting: OnceLock<String>,
}

impl Shared {
    pub(crate) fn new(name: Arc<str>, purpose: Purpose) -> Self {
        Self {
            purpose,
            handle: OnceLock::new(),
            line: OnceLock::new(),
            refusals: Refusals::default(),
            parting: OnceLock::new(),
            name,
            facts: Mutex::new(Facts::default()),
            ended: watch::Sender::new(None),
            listeners: Listeners::default(),
        }
    }

    /// Returns the lifeline of the connection, for a new stream.
    fn line(&self) -> Option<Arc<Line>> {
        self.line.get().and_then(Weak::upgrade)
    }

    pub(crate) fn note(&self, note: impl FnOnce(&mut Facts)) {
        note(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes a failure from `fault`. If the library reports only that the connection has ended, the function waits up
    /// to [`SOON`] for the reason, which the library passes to a callback.
    pub(crate) async fn why(&self, phase: Phase, fault: &russh::Error) -> Failure {
        use russh::Error::{Disconnect, HUP, RecvError, SendError};
        if matches!(fault, Disconnect | HUP | RecvError | SendError)
            && let Some(ended) = self.ended_soon().await
        {
            return Failure { phase, remote: failure(phase, ended.reason, String::new()).remote, ..ended };
        }
        of(phase, fault, &self.name)
    }

    /// Waits up to [`SOON`] for the reason why the connection has ended.
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

/// An error of a callback: it ends the connection.
#[derive(Debug)]
pub(crate) enum Fault {
    Library(russh::Error),
    Refused(Failure),
}

impl From<russh::Error> for Fault {
    fn from(fault: russh::Error) -> Self {
        Self::Library(fault)
    }
}

impl russh::client::Handler for Handler {
    type Error = Fault;

    /// The library calls this function at every key exchange; the registry's version of the library does so only at the
    /// first.
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
            // A later key exchange does not change the strict mode: the first one decided it.
            let strict = facts.negotiated.as_ref().map(|first| first.strict);
            facts.negotiated = Some(Negotiated { strict: strict.unwrap_or(negotiated.strict), ..negotiated });
            if facts.server.is_empty() {
                facts.server = quoted(&server).trim_matches('"').to_owned();
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
        let from = format!("{}:{from_port}", quoted(from).trim_matches('"'));
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

    // The library accepts these channels by default; a server has no reason to open one.

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
                let detail = format!("{} ended the connection: {}", self.name, quoted(&said.message));
                let _ = self.shared.parting.set(said.message);
                self.shared.end(failure(Phase::Run, Reason::ConnectionLost, detail));
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
    /// The library's task has ended.
    fn drop(&mut self) {
        self.shared.listeners.close();
        self.shared.end(failure(
            Phase::Run,
            Reason::ConnectionLost,
            format!("the connection to {} was closed", self.name),
        ));
    }
}

/// Converts a verdict for the library: the error of a refused host ends the connection.
fn refused(phase: Phase, verdict: Verdict) -> Result<bool, Fault> {
    let Verdict::Refused { reason, message, advice } = verdict else { return Ok(true) };
    let mut failure = failure(phase, reason, message);
    failure.advice = (!advice.is_empty()).then_some(advice);
    Err(Fault::Refused(failure))
}

/// Makes the failure for a short RSA host key. An attacker with money could forge such a key, so it is refused even if
/// it is pinned.
fn too_short(name: &str, bits: usize, least: usize) -> Failure {
    let detail = format!(
        "{name} showed an RSA key of {bits} bits, and RequiredRSASize asks for {least}; nothing was sent"
    );
    let mut refused = failure(Phase::Identity, Reason::KeyRefused, detail);
    refused.advice =
        Some(format!("let {name} have an Ed25519 key, or lower RequiredRSASize for it in ~/.ssh/config"));
    refused
}

pub(crate) fn logical(key: &russh::keys::PublicKey) -> Result<PublicKey, russh::Error> {
    let blob = key.to_bytes()?;
    PublicKey::from_blob(&blob).map_err(|_| russh::Error::CouldNotReadKey)
}

/// Refuses a channel that a server has no reason to open.
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

/// Maximum time between the library's report that a connection has ended and its report of the reason.
const SOON: Duration = Duration::from_secs(1);

/// Maximum number of characters that are kept of the banner before authentication.
const LONGEST_BANNER: usize = 4096;
