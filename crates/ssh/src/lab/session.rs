//! One connection to a host of the lab, from authentication on.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, Sig};

use super::host::Host;
use super::program::{self, Call};

/// The state of one connection.
pub(super) struct Session {
    host: Arc<Host>,
    connection: u64,
    /// Channels in which nothing runs yet.
    idle: HashMap<ChannelId, Idle>,
}

/// A session channel before its command.
struct Idle {
    channel: Channel<Msg>,
    environment: Vec<(String, String)>,
}

impl Session {
    pub(super) fn new(host: Arc<Host>, connection: u64) -> Self {
        Self { host, connection, idle: HashMap::new() }
    }

    fn note(&self, event: std::fmt::Arguments<'_>) {
        self.host.note(self.connection, event);
    }

    fn judge(&self, user: &str, key: &russh::keys::PublicKey, proved: Proof) -> Auth {
        let known = self.host.authorized.iter().any(|allowed| allowed.key_data() == key.key_data());
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
    ) -> Result<(), Halt> {
        let Some(Idle { channel, environment }) = self.idle.remove(&id) else {
            // A second command in one channel (RFC 4254 section 6.5).
            return Ok(session.channel_failure(id)?);
        };
        session.channel_success(id)?;
        let host = Arc::clone(&self.host);
        let handle = session.handle();
        tokio::spawn(program::run(host, self.connection, channel, handle, command, environment));
        Ok(())
    }
}

/// Whether a key was shown or used.
#[derive(Clone, Copy)]
enum Proof {
    Offered,
    Signed,
}

impl Handler for Session {
    type Error = Halt;

    async fn auth_none(&mut self, user: &str) -> Result<Auth, Halt> {
        self.note(format_args!("auth user={} method=none refused", user.escape_default()));
        Ok(Auth::reject())
    }

    async fn auth_publickey_offered(&mut self, user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Halt> {
        Ok(self.judge(user, offer.public_key, Proof::Offered))
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Halt> {
        Ok(self.judge(user, key.public_key, Proof::Signed))
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut russh::server::Session,
    ) -> Result<(), Halt> {
        if self.idle.len() >= MOST_IDLE {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.note(format_args!("channel session"));
        self.idle.insert(channel.id(), Idle { channel, environment: Vec::new() });
        reply.accept().await;
        Ok(())
    }

    async fn channel_close(&mut self, id: ChannelId, _: &mut russh::server::Session) -> Result<(), Halt> {
        self.idle.remove(&id);
        Ok(())
    }

    async fn env_request(
        &mut self,
        id: ChannelId,
        name: &str,
        value: &str,
        session: &mut russh::server::Session,
    ) -> Result<(), Halt> {
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
    ) -> Result<(), Halt> {
        self.note(format_args!("exec {}", command.escape_ascii()));
        self.run(id, Call::Command(command.to_owned()), session)
    }

    async fn shell_request(
        &mut self,
        id: ChannelId,
        session: &mut russh::server::Session,
    ) -> Result<(), Halt> {
        self.note(format_args!("shell"));
        self.run(id, Call::Shell, session)
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        name: &str,
        session: &mut russh::server::Session,
    ) -> Result<(), Halt> {
        self.note(format_args!("subsystem {}", name.escape_default()));
        Ok(session.channel_failure(id)?)
    }

    async fn signal(
        &mut self,
        _: ChannelId,
        signal: Sig,
        _: &mut russh::server::Session,
    ) -> Result<(), Halt> {
        // The program gets it through its channel.
        self.note(format_args!("signal {signal:?}"));
        Ok(())
    }
}

/// What ends a connection: an error of the library.
pub(super) struct Halt;

impl From<russh::Error> for Halt {
    fn from(_: russh::Error) -> Self {
        Self
    }
}

impl From<Infallible> for Halt {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// As many as OpenSSH allows sessions in a connection (`MaxSessions`).
const MOST_IDLE: usize = 10;

const MOST_VARIABLES: usize = 100;
