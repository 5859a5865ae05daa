//! A connection to a host that is who it should be, logged in.

use std::sync::{Arc, PoisonError, Weak};

use logic::fleet::ending::{Failure, Phase, Reason, Remote};
use logic::ssh::unconnected::Unconnected;
use russh::client::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::facts::Facts;
use crate::handler::{Handler, Shared, logical};
use crate::judge::Judge;
use crate::listen::{Incoming, Listener};
use crate::process::{Exec, Process};
use crate::refusal::Opening;
use crate::stream::Stream;
use crate::trouble::{self, failure};
use crate::wire::{Lifeline, Line};

/// A connection, logged in. Dropping it and all that was opened on it closes it.
pub struct Session {
    handle: Arc<Handle<Handler>>,
    shared: Arc<Shared>,
    proofs: watch::Receiver<Proofs>,
    line: Arc<Line>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proofs {
    None,
    Pending,
}

impl Session {
    pub(crate) fn new(
        handle: Handle<Handler>,
        shared: Arc<Shared>,
        judge: Arc<dyn Judge>,
        announced: mpsc::Receiver<Vec<russh::keys::PublicKey>>,
        lifeline: Lifeline,
    ) -> Self {
        let handle = Arc::new(handle);
        let (pending, proofs) = watch::channel(Proofs::None);
        let weak = Arc::downgrade(&handle);
        let line = Arc::new(Line::new(lifeline));
        let _ = shared.handle.set(Weak::clone(&weak));
        let _ = shared.line.set(Arc::downgrade(&line));
        let name = Arc::clone(&shared.name);
        tokio::spawn(prove(weak, name, judge, announced, pending));
        Self { handle, shared, proofs, line }
    }

    /// Sends a command. Its events, [`crate::Event::Started`] first, come from [`Process::next`].
    ///
    /// # Errors
    /// The server refused a channel, or the connection broke; the command was not started.
    pub async fn exec(&self, command: &str, options: &Exec) -> Result<Process, Failure> {
        let channel = match self.handle.channel_open_session().await {
            Ok(channel) => channel,
            Err(fault) => return Err(self.never_started(&fault).await),
        };
        for (name, value) in &options.environment {
            if let Err(fault) = channel.set_env(false, name.as_str(), value.as_str()).await {
                return Err(self.never_started(&fault).await);
            }
        }
        if let Some(terminal) = &options.terminal {
            let (columns, rows) = (terminal.columns, terminal.rows);
            let sent = channel.request_pty(false, &terminal.kind, columns, rows, 0, 0, &[]).await;
            if let Err(fault) = sent {
                return Err(self.never_started(&fault).await);
            }
        }
        if let Err(fault) = channel.exec(true, command).await {
            return Err(self.never_started(&fault).await);
        }
        Ok(Process::new(channel, Arc::clone(&self.shared), Arc::clone(&self.line)))
    }

    /// Opens a stream to a TCP port as the host sees it (RFC 4254 section 7.2).
    ///
    /// # Errors
    /// The server refused, or could not connect.
    pub async fn open_tcp(&self, host: &str, port: u16) -> Result<Stream, Failure> {
        let opening = self.shared.refusals.opening();
        let opened = self.handle.channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0).await;
        self.stream(opened, opening, &format!("{host}:{port}")).await
    }

    /// Opens a stream to a Unix socket on the host (OpenSSH PROTOCOL section 2.4).
    ///
    /// # Errors
    /// The server refused, or could not connect.
    pub async fn open_unix(&self, path: &str) -> Result<Stream, Failure> {
        let opening = self.shared.refusals.opening();
        let opened = self.handle.channel_open_direct_streamlocal(path).await;
        self.stream(opened, opening, path).await
    }

    /// Has the host listen on a TCP port for us. With port 0 it chooses one; [`Incoming::at`] tells.
    ///
    /// # Errors
    /// The server refused.
    pub async fn listen_tcp(&self, address: &str, port: u16) -> Result<Incoming, Failure> {
        let weak = Arc::downgrade(&self.handle);
        let asked = Listener::Tcp(address.to_owned(), port);
        // A port that is known is awaited before it is asked for, so that the first client finds us ready.
        let early = (port != 0).then(|| self.shared.listeners.open(asked, weak.clone()));
        match self.handle.tcpip_forward(address, u32::from(port)).await {
            Ok(chosen) => Ok(early.unwrap_or_else(|| {
                let chosen = u16::try_from(chosen).unwrap_or_default();
                self.shared.listeners.open(Listener::Tcp(address.to_owned(), chosen), weak)
            })),
            Err(fault) => Err(self.no_listener(&fault, &format!("{address}:{port}")).await),
        }
    }

    /// Has the host listen on a Unix socket for us.
    ///
    /// # Errors
    /// The server refused, for instance because the path exists.
    pub async fn listen_unix(&self, path: &str) -> Result<Incoming, Failure> {
        let at = Listener::Unix(path.to_owned());
        let incoming = self.shared.listeners.open(at, Arc::downgrade(&self.handle));
        match self.handle.streamlocal_forward(path).await {
            Ok(()) => Ok(incoming),
            Err(fault) => Err(self.no_listener(&fault, path).await),
        }
    }

    /// A channel to a subsystem.
    pub(crate) async fn subsystem(&self, name: &str) -> Result<Stream, Failure> {
        let opened = self.handle.channel_open_session().await;
        let mut channel = match opened {
            Ok(channel) => channel,
            Err(fault) => return Err(self.never_started(&fault).await),
        };
        if let Err(fault) = channel.request_subsystem(true, name).await {
            return Err(self.never_started(&fault).await);
        }
        loop {
            match channel.wait().await {
                Some(russh::ChannelMsg::Success) => {
                    return Ok(Stream::new(channel, Some(Arc::clone(&self.line))));
                }
                Some(russh::ChannelMsg::Failure) => {
                    let mut refused = trouble::advised(
                        Phase::Start,
                        Reason::ChannelRefused,
                        format!("{} has no subsystem {name}", self.shared.name),
                        &format!("add \"Subsystem {name} internal-{name}\" to its sshd_config"),
                    );
                    refused.remote = Remote::NeverStarted;
                    return Err(refused);
                }
                Some(russh::ChannelMsg::Close) | None => {
                    return Err(self.never_started(&russh::Error::Disconnect).await);
                }
                Some(_) => {}
            }
        }
    }

    /// What was learnt while connecting.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.shared.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The name under which the host is known.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What the connection is for.
    pub(crate) fn purpose(&self) -> crate::target::Purpose {
        self.shared.purpose
    }

    /// Whether the connection still stands, as far as is known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.handle.is_closed()
    }

    /// Waits until the connection has ended, and says why.
    pub async fn closed(&self) -> Failure {
        let mut ended = self.shared.ended.subscribe();
        match ended.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(failure)) => failure,
            _ => failure(
                Phase::Run,
                Reason::Lost,
                format!("the connection to {} was closed", self.shared.name),
            ),
        }
    }

    /// Says goodbye, after the proofs of announced keys that are under way.
    pub async fn close(mut self) {
        let _ = timeout(LAST_PROOF, self.proofs.wait_for(|proofs| *proofs == Proofs::None)).await;
        let goodbye = self.handle.disconnect(russh::Disconnect::ByApplication, "", "");
        // To a host that does not read, nothing can be said.
        let _ = timeout(LAST_PROOF, goodbye).await;
    }

    async fn stream(
        &self,
        opened: Result<russh::Channel<russh::client::Msg>, russh::Error>,
        opening: Opening<'_>,
        to: &str,
    ) -> Result<Stream, Failure> {
        match opened {
            Ok(channel) => Ok(Stream::new(channel, Some(Arc::clone(&self.line)))),
            Err(fault) => {
                let mut failure = self.never_started(&fault).await;
                if matches!(fault, russh::Error::ChannelOpenFailure(russh::ChannelOpenFailure::ConnectFailed))
                {
                    let words = opening.words().await;
                    let why = Unconnected::of(&words);
                    failure.reason = why.reason();
                    let said = why.words(&words).map(|words| format!(": {words}")).unwrap_or_default();
                    failure.detail = format!("{} could not connect to {to}{said}", self.shared.name);
                }
                if matches!(
                    fault,
                    russh::Error::ChannelOpenFailure(russh::ChannelOpenFailure::AdministrativelyProhibited)
                ) {
                    failure.advice = Some(
                        "look at AllowTcpForwarding, AllowStreamLocalForwarding, PermitOpen in its sshd_config"
                            .to_owned(),
                    );
                }
                Err(failure)
            }
        }
    }

    async fn no_listener(&self, fault: &russh::Error, at: &str) -> Failure {
        let mut failure = self.never_started(fault).await;
        if matches!(fault, russh::Error::RequestDenied) {
            failure.detail = format!("{} refused to listen on {at} for us", self.shared.name);
            let advice = match at.starts_with('/') {
                // sshd leaves the file behind when the connection ends.
                true => {
                    "remove that file there if an earlier connection left it, or set StreamLocalBindUnlink yes in its sshd_config, which replaces it; look at AllowStreamLocalForwarding there, too"
                }
                false => {
                    "is it in use there? look at AllowTcpForwarding, GatewayPorts, PermitListen in its sshd_config"
                }
            };
            failure.advice = Some(advice.to_owned());
        }
        failure
    }

    async fn never_started(&self, fault: &russh::Error) -> Failure {
        Failure { remote: Remote::NeverStarted, ..self.shared.why(Phase::Start, fault).await }
    }
}

/// Has the server prove the keys that it announced, and passes them on.
async fn prove(
    handle: Weak<Handle<Handler>>,
    name: Arc<str>,
    judge: Arc<dyn Judge>,
    mut announced: mpsc::Receiver<Vec<russh::keys::PublicKey>>,
    pending: watch::Sender<Proofs>,
) {
    while let Some(keys) = announced.recv().await {
        let logical: Vec<_> = keys.iter().take(MOST_KEYS).filter_map(|key| logical(key).ok()).collect();
        let new = judge.unproved(&name, logical.clone());
        let asked: Vec<_> = keys
            .into_iter()
            .take(MOST_KEYS)
            .filter(|key| crate::handler::logical(key).is_ok_and(|key| new.contains(&key)))
            .collect();
        let Some(handle) = handle.upgrade().filter(|_| !asked.is_empty()) else { continue };
        pending.send_replace(Proofs::Pending);
        let proved = timeout(LAST_PROOF, handle.hostkeys_prove(asked)).await;
        drop(handle);
        if matches!(proved, Ok(Ok(()))) {
            judge.announced(&name, new);
        }
        pending.send_replace(Proofs::None);
    }
}

/// How long a proof may take; and so long the end of a session waits for one.
const LAST_PROOF: std::time::Duration = std::time::Duration::from_secs(2);

/// So many announced keys are looked at.
const MOST_KEYS: usize = 32;
