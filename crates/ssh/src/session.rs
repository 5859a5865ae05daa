//! A connection to a host with a proved identity, after the log-in.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, Weak};

use hosts::fleet::ending::{Failure, Phase, Reason, Remote};
use hosts::ssh::unconnected::Unconnected;
use russh::client::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::facts::Facts;
use crate::handler::{Handler, Shared, logical};
use crate::judge::HostVerifier;
use crate::listen::{Incoming, Listener};
use crate::process::{Exec, Process};
use crate::refusal::Opening;
use crate::stream::Stream;
use crate::trouble::{self, failure};
use crate::wire::{CloseOnDrop, Line};

/// A connection after the log-in. It closes when the session and everything opened on it are dropped.
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
        judge: Arc<dyn HostVerifier>,
        announced: mpsc::Receiver<Vec<russh::keys::PublicKey>>,
        lifeline: CloseOnDrop,
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

    /// Starts a command. [`Process::next`] returns its events, [`crate::Event::Started`] first.
    ///
    /// # Errors
    /// The server refused a channel, or the connection broke; the command was not started.
    pub async fn exec(&self, command: &str, options: &Exec) -> Result<Process, Failure> {
        self.exec_noting(command, options, &AtomicBool::new(false)).await
    }

    /// [`Self::exec`], which sets `opened` before it sends the command: until then, a caller that gives up knows that the host
    /// has not started the command.
    ///
    /// # Errors
    /// As [`Self::exec`].
    pub async fn exec_noting(
        &self,
        command: &str,
        options: &Exec,
        opened: &AtomicBool,
    ) -> Result<Process, Failure> {
        let channel = match self.handle.channel_open_session().await {
            Ok(channel) => channel,
            Err(fault) => return Err(self.not_started(&fault).await),
        };
        opened.store(true, Relaxed);
        for (name, value) in &options.environment {
            if let Err(fault) = channel.set_env(false, name.as_str(), value.as_str()).await {
                return Err(self.not_started(&fault).await);
            }
        }
        if let Some(terminal) = &options.terminal {
            let (columns, rows) = (terminal.columns, terminal.rows);
            let sent = channel.request_pty(false, &terminal.kind, columns, rows, 0, 0, &[]).await;
            if let Err(fault) = sent {
                return Err(self.not_started(&fault).await);
            }
        }
        if let Err(fault) = channel.exec(true, command).await {
            return Err(self.not_started(&fault).await);
        }
        Ok(Process::new(channel, Arc::clone(&self.shared), Arc::clone(&self.line)))
    }

    /// Opens a stream to a TCP port. The host resolves the name and connects (RFC 4254 section 7.2).
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

    /// Makes the host listen on a TCP port for this client. If `port` is 0, the host chooses a port, which
    /// [`Incoming::at`] returns.
    ///
    /// # Errors
    /// The server refused.
    pub async fn listen_tcp(&self, address: &str, port: u16) -> Result<Incoming, Failure> {
        let weak = Arc::downgrade(&self.handle);
        let asked = Listener::Tcp(address.to_owned(), port);
        // A known port is registered before the request, so that the connection of the first client finds its queue.
        let early = (port != 0).then(|| Incoming::open(&self.shared.listeners, asked, weak.clone()));
        match self.handle.tcpip_forward(address, u32::from(port)).await {
            Ok(chosen) => Ok(early.unwrap_or_else(|| {
                let chosen = u16::try_from(chosen).unwrap_or_default();
                Incoming::open(&self.shared.listeners, Listener::Tcp(address.to_owned(), chosen), weak)
            })),
            Err(fault) => Err(self.no_listener(&fault, &format!("{address}:{port}")).await),
        }
    }

    /// Makes the host listen on a Unix socket for this client.
    ///
    /// # Errors
    /// The server refused, for instance because the path exists.
    pub async fn listen_unix(&self, path: &str) -> Result<Incoming, Failure> {
        let at = Listener::Unix(path.to_owned());
        let incoming = Incoming::open(&self.shared.listeners, at, Arc::downgrade(&self.handle));
        match self.handle.streamlocal_forward(path).await {
            Ok(()) => Ok(incoming),
            Err(fault) => Err(self.no_listener(&fault, path).await),
        }
    }

    pub(crate) async fn subsystem(&self, name: &str) -> Result<Stream, Failure> {
        let opened = self.handle.channel_open_session().await;
        let mut channel = match opened {
            Ok(channel) => channel,
            Err(fault) => return Err(self.not_started(&fault).await),
        };
        if let Err(fault) = channel.request_subsystem(true, name).await {
            return Err(self.not_started(&fault).await);
        }
        loop {
            match channel.wait().await {
                Some(russh::ChannelMsg::Success) => {
                    return Ok(Stream::new(channel, Some(Arc::clone(&self.line))).confirmed());
                }
                Some(russh::ChannelMsg::Failure) => {
                    let mut refused = trouble::advised(
                        Phase::Start,
                        Reason::ChannelRefused,
                        format!("{} has no subsystem {name}", self.shared.name),
                        &format!("add \"Subsystem {name} internal-{name}\" to its sshd_config"),
                    );
                    refused.remote = Remote::NotStarted;
                    return Err(refused);
                }
                Some(russh::ChannelMsg::Close) | None => {
                    return Err(self.not_started(&russh::Error::Disconnect).await);
                }
                Some(_) => {}
            }
        }
    }

    /// Returns the facts that the connection has learnt.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.shared.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    pub(crate) fn purpose(&self) -> crate::target::Purpose {
        self.shared.purpose
    }

    /// Returns false if the connection is known to have ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.handle.is_closed()
    }

    /// Waits until the connection has ended, and returns the reason.
    pub async fn closed(&self) -> Failure {
        let mut ended = self.shared.ended.subscribe();
        match ended.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(failure)) => failure,
            _ => failure(
                Phase::Run,
                Reason::ConnectionLost,
                format!("the connection to {} was closed", self.shared.name),
            ),
        }
    }

    /// Closes the connection with a disconnect message, after the current proof of announced keys has ended.
    pub async fn close(mut self) {
        let _ = timeout(LAST_PROOF, self.proofs.wait_for(|proofs| *proofs == Proofs::None)).await;
        let goodbye = self.handle.disconnect(russh::Disconnect::ByApplication, "", "");
        // If the host does not read, the message cannot be sent.
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
                let mut failure = self.not_started(&fault).await;
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
        let mut failure = self.not_started(fault).await;
        if matches!(fault, russh::Error::RequestDenied) {
            failure.detail = format!("{} refused to listen on {at} for us", self.shared.name);
            let advice = match at.starts_with('/') {
                // sshd does not remove the socket file when the connection ends.
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

    async fn not_started(&self, fault: &russh::Error) -> Failure {
        Failure { remote: Remote::NotStarted, ..self.shared.why(Phase::Start, fault).await }
    }
}

/// Lets the server prove the keys that it announced, and passes the keys to the judge.
async fn prove(
    handle: Weak<Handle<Handler>>,
    name: Arc<str>,
    judge: Arc<dyn HostVerifier>,
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

/// Timeout of a proof. The close of a session waits for a proof no longer than this.
const LAST_PROOF: std::time::Duration = std::time::Duration::from_secs(2);

/// Maximum number of announced keys that are examined.
const MOST_KEYS: usize = 32;
