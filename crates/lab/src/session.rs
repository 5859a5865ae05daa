//! One connection to a host of the lab, from the authentication on.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, Sig};
use tokio::net::TcpStream;

use crate::call::Call;
use crate::channel::{self, Place};
use crate::disconnect::{DisconnectHandle, HOSTILE_DISCONNECT};
use crate::fault::{Fault, Kind};
use crate::host::Host;
use crate::sftp;

use crate::wire::{Control, Cut};

pub(crate) struct Session {
    host: Arc<Host>,
    connection: u64,
    control: Arc<Control>,
    fault: Option<Fault>,
    /// Notified when the connection must end with a message.
    disconnect: Arc<DisconnectHandle>,
    /// Requests for a channel that the host never answers.
    unanswered: Vec<ChannelOpenHandle>,
    /// Channels without a running command.
    idle: HashMap<ChannelId, Idle>,
}

/// A session channel before its command.
struct Idle {
    channel: Channel<Msg>,
    environment: Vec<(String, String)>,
}

impl Session {
    pub(crate) fn new(
        host: Arc<Host>,
        connection: u64,
        control: Arc<Control>,
        fault: Option<Fault>,
        disconnect: Arc<DisconnectHandle>,
    ) -> Self {
        Self { host, connection, control, fault, disconnect, unanswered: Vec::new(), idle: HashMap::new() }
    }

    /// Whether this connection has the fault `kind`.
    fn has(&self, kind: Kind) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.kind == kind)
    }

    fn note(&self, event: std::fmt::Arguments<'_>) {
        self.host.note(self.connection, event);
    }

    fn judge(&self, user: &str, key: &russh::keys::PublicKey, proved: Proof) -> Auth {
        let refuses = self.has(Kind::Deny) || (self.has(Kind::Disconnect) && matches!(proved, Proof::Signed));
        let known =
            !refuses && self.host.authorized.iter().any(|allowed| allowed.key_data() == key.key_data());
        let result = if known { "accepted" } else { "refused" };
        let fingerprint = key.fingerprint(russh::keys::HashAlg::Sha256);
        let word = match proved {
            Proof::Offered => "offer",
            Proof::Signed => "auth",
        };
        self.note(format_args!(
            "{word} user={} method=publickey key={fingerprint} {result}",
            user.escape_default()
        ));
        if known { Auth::Accept } else { Auth::reject() }
    }

    fn run(
        &mut self,
        id: ChannelId,
        command: Call,
        session: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        let Some(Idle { channel, environment }) = self.idle.remove(&id) else {
            // A second request for a command in one channel fails (RFC 4254 section 6.5).
            return Ok(session.channel_failure(id)?);
        };
        session.channel_success(id)?;
        let place = Place {
            host: Arc::clone(&self.host),
            connection: self.connection,
            control: Arc::clone(&self.control),
            handle: session.handle(),
            fault: self.fault.clone(),
        };
        tokio::spawn(channel::run(place, channel, command, environment));
        Ok(())
    }
}

/// Whether the client has only offered a key, or has signed with it.
#[derive(Clone, Copy)]
enum Proof {
    Offered,
    Signed,
}

impl Handler for Session {
    type Error = ConnectionEnd;

    async fn auth_none(&mut self, user: &str) -> Result<Auth, ConnectionEnd> {
        self.note(format_args!("auth user={} method=none refused", user.escape_default()));
        Ok(Auth::reject())
    }

    async fn authentication_banner(&mut self) -> Result<Option<String>, ConnectionEnd> {
        self.note(format_args!("log-in begins"));
        match self.fault.as_ref().map(|fault| fault.kind) {
            Some(Kind::HangService) => {
                self.control.gone().await;
                Err(ConnectionEnd)
            }
            Some(Kind::HostileBanner) => Ok(Some(HOSTILE_DISCONNECT.to_owned())),
            _ => Ok(None),
        }
    }

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, ConnectionEnd> {
        match self.fault.as_ref().map(|fault| (fault.kind, fault.number())) {
            Some((Kind::HangAuth, _)) => {
                self.judge(user, offer.public_key, Proof::Offered);
                self.control.gone().await;
                return Err(ConnectionEnd);
            }
            Some((Kind::SlowAuth, milliseconds)) => {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            }
            Some((Kind::HangUpAuth, _)) => {
                self.judge(user, offer.public_key, Proof::Offered);
                self.control.cut(Cut::Fin);
                return Err(ConnectionEnd);
            }
            Some((Kind::Disconnect, _)) => {
                self.judge(user, offer.public_key, Proof::Offered);
                self.disconnect.wanted.notify_one();
                self.disconnect.queued.notified().await;
                // A client that is refused here would close the connection before it receives the message.
                return Ok(Auth::Accept);
            }
            _ => {}
        }
        Ok(self.judge(user, offer.public_key, Proof::Offered))
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, ConnectionEnd> {
        Ok(self.judge(user, key.public_key, Proof::Signed))
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        if self.idle.len() >= MOST_IDLE {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.note(format_args!("channel session"));
        match self.fault.as_ref().map(|fault| fault.kind) {
            Some(Kind::RefuseChannel) => {
                reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
                return Ok(());
            }
            Some(Kind::HangChannel) if self.unanswered.len() < MOST_IDLE => {
                self.unanswered.push(reply);
                return Ok(());
            }
            _ => {}
        }
        self.idle.insert(channel.id(), Idle { channel, environment: Vec::new() });
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        self.note(format_args!("channel direct-tcpip {}:{port}", host.escape_default()));
        let target = loopback(host).zip(u16::try_from(port).ok());
        // A separate task connects, so that the SSH connection is not blocked.
        tokio::spawn(async move {
            let Some(target) = target else {
                // A lab connects to loopback addresses only.
                return reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
            };
            match TcpStream::connect(target).await {
                Ok(mut stream) => {
                    reply.accept().await;
                    let mut channel = channel.into_stream();
                    let _ = tokio::io::copy_bidirectional(&mut channel, &mut stream).await;
                }
                Err(_) => reply.reject(ChannelOpenFailure::ConnectFailed).await,
            }
        });
        Ok(())
    }

    async fn channel_close(
        &mut self,
        id: ChannelId,
        _: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        self.idle.remove(&id);
        Ok(())
    }

    async fn pty_request(
        &mut self,
        id: ChannelId,
        _: &str,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: &[(russh::Pty, u32)],
        session: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        // No command needs a terminal, but a client that requests one expects success.
        Ok(session.channel_success(id)?)
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        match self.idle.get_mut(&id) {
            Some(idle) if idle.environment.len() < MOST_VARIABLES => {
                idle.environment.push((name.to_owned(), value.to_owned()));
                Ok(session.channel_success(id)?)
            }
            _ => Ok(session.channel_failure(id)?),
        }
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        command: &[u8],
        session: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        self.note(format_args!("exec {}", command.escape_ascii()));
        match self.fault.as_ref().map(|fault| fault.kind) {
            Some(Kind::RefuseExec) => return Ok(session.channel_failure(id)?),
            Some(Kind::HangExec) => return Ok(()),
            _ => {}
        }
        self.run(id, Call::Command(command.to_owned()), session)
    }

    async fn shell_request(
        &mut self,
        id: ChannelId,
        session: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        self.note(format_args!("shell"));
        self.run(id, Call::Shell, session)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        self.note(format_args!("subsystem {}", name.escape_default()));
        let Some(Idle { channel, .. }) = (name == "sftp").then(|| self.idle.remove(&id)).flatten() else {
            return Ok(session.channel_failure(id)?);
        };
        session.channel_success(id)?;
        tokio::spawn(sftp::serve(channel, session.handle(), self.host.files.clone()));
        Ok(())
    }

    async fn signal(
        &mut self,
        _: ChannelId,
        signal: Sig,
        _: &mut russh::server::Session,
    ) -> Result<(), ConnectionEnd> {
        // The channel's own task passes the signal to the program.
        self.note(format_args!("signal {signal:?}"));
        Ok(())
    }
}

/// Parses a loopback address or `localhost`. `None` for any other host.
fn loopback(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        host => host.parse().ok().filter(IpAddr::is_loopback),
    }
}

/// Reason for the end of a connection: an error of the library.
pub(crate) struct ConnectionEnd;

impl From<russh::Error> for ConnectionEnd {
    fn from(_: russh::Error) -> Self {
        Self
    }
}

impl From<Infallible> for ConnectionEnd {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// OpenSSH's limit of sessions in a connection (`MaxSessions`).
const MOST_IDLE: usize = 10;

const MOST_VARIABLES: usize = 100;
