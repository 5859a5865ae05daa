//! The control socket, which `penstock ctl` uses to read and change the state of the process.
//!
//! It has its own thread and runtime, and a limit of CPU time that all its clients share fairly: neither an idle nor a
//! flooding client delays traffic or another client. While workers want its core, the scheduler leaves it a tenth. Peer credentials (SO_PEERCRED, unix(7)) decide who may send
//! commands.
//!
//! # The path of a control command
//!
//! `crates/penstock/src/cmd/ctl.rs` -> the Unix socket -> `crates/serve/src/control/session.rs` (framing, limits, peer
//! credentials) -> `crates/serve/src/control/command.rs` (one table: name, arguments, help, handler) -> `State`, or a
//! request to the supervisor in `crates/serve/src/start.rs`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use config::types::Control;
use logic::client_slots::Limit;
use proxy::front::Front;
use state::client_slots::Size;
use state::events::{Level, RateLimitedEvent};
use state::listen::SocketPath;
use sys::cpu::{self, run_in_background, thread_time, usable};
use sys::socket::ListenUnixError;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::acceptor::{Acceptor, Arrival, Bound};
use crate::client_slots::{ClientSlotSet, NoSlot};
use crate::logins::Logins;
use crate::pace::{Pace, Paced};
use crate::upgrade::take_over::TakeOver;

mod change;
mod client;
mod command;
mod ending;
mod framing;
mod mail;
mod remote;
mod session;
mod sessions;
mod step_up;
mod stream;
mod words;

use client::Shared;
use ending::Ending;
use remote::kerberos::Kerberos;
pub(crate) use remote::{OF_LOG_IN, SIZE as REMOTE_SIZE, kerberos_files};
use session::Session;
use step_up::Proved;
use stream::Stream;

/// Largest number of clients. When all slots are taken, a new client replaces the one silent longest.
///
/// One user gets a part of the slots, and some are left to root and the user of the process: who may only read must not
/// keep them out.
///
/// Clients that follow events keep their slots: an operator who watches must not lose later events because another
/// operator connects. Some slots are therefore never given to followers.
pub(crate) const SIZE: Size = Size { slots: 64, following: 56 };

/// Time that a new client waits for a slot while all other clients are in the middle of a command.
const PLACE_LIMIT: Duration = Duration::from_secs(5);

/// Time for the command of a client that has just connected when the process ends after an upgrade: a command may have come to this
/// one instead of the next.
const LAST_LINE_TIME: Duration = Duration::from_millis(500);

/// The control thread may use 1/2 of a core for commands, and as much to accept clients: it runs in the background, so
/// that is time in which no worker wants the core.
const BACKGROUND_PART: u32 = 2;

/// It may use 1/10 for each if workers and the thread share a quota of CPU time, of which the background takes as much as
/// others, or if the thread cannot run in the background.
const FOREGROUND_PART: u32 = 10;

/// A client that is refused costs so many times its time: any local user may connect if the configuration names users.
const REFUSED_COSTS: u32 = 5;

/// Only the owner may connect.
const MODE: u32 = 0o600;

/// Everyone may connect, because the configuration names users or groups: the kernel says who it is.
const OPEN_MODE: u32 = 0o666;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("listen on control socket {}", .path.display())]
    Bind { path: PathBuf, source: ListenUnixError },
    #[error(transparent)]
    Remote(#[from] remote::BindError),
    #[error("start the control thread")]
    Start(#[source] io::Error),
}

/// A bound control socket without its thread. Dropping it removes the socket file.
#[derive(Debug)]
pub struct ControlSocket {
    socket: Bound,
    remote: Option<Bound>,
    kerberos: Kerberos,
    /// Effective user at the time of the bind, before privileges were dropped.
    owner: u32,
    // Last field, because the socket must be closed before its file is removed.
    file: SocketPath,
}

/// The thread that serves the control socket. Dropping this handle ends the thread and removes the socket file.
#[derive(Debug)]
pub struct ControlThread {
    stop: Option<oneshot::Sender<()>>,
    leave: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Further descriptors of the listening sockets, for the next process.
    listener: OwnedFd,
    remote: Option<OwnedFd>,
    // Last field: a file goes after its sockets.
    file: SocketPath,
}

/// Binds the control socket, or takes over that of the process before. Call this before privileges are dropped: the directory
/// may belong to root.
pub fn bind(control: &Control, take_over: Option<&TakeOver>) -> Result<ControlSocket, ControlError> {
    let Control { socket: path, access, remote } = control;
    let kerberos = Kerberos::load(remote.as_ref());
    let remote =
        remote.as_ref().map(|remote| match take_over.and_then(|it| it.remote(&remote.listen.to_string())) {
            Some(listener) => Ok(Bound::from(listener)),
            None => remote::bind(&remote.listen),
        });
    let remote = remote.transpose()?;
    let mode = if access.is_empty() { MODE } else { OPEN_MODE };
    let (socket, file) = match take_over.and_then(|it| it.control(path)) {
        Some((listener, file)) => {
            // Without the right to change it, it stays as it was.
            let _ = file.set_mode(mode);
            (Bound::from(listener), file)
        }
        None => Bound::unix_and_file(path, mode)
            .map_err(|source| ControlError::Bind { path: path.to_owned(), source })?,
    };
    let owner = nix::unistd::geteuid().as_raw();
    Ok(ControlSocket { socket, remote, kerberos, owner, file })
}

impl ControlError {
    /// Key of `[control]` that it is about.
    pub(crate) fn key(&self) -> &'static str {
        match self {
            Self::Remote(_) => "listen",
            Self::Bind { .. } | Self::Start(_) => "socket",
        }
    }
}

impl ControlSocket {
    /// Address for clients over the network.
    pub(crate) fn remote_address(&self) -> Option<SocketAddr> {
        self.remote.as_ref()?.address()
    }

    /// Starts the thread that serves the socket.
    pub fn run(self, front: Arc<Front>, logins: Arc<Logins>) -> Result<ControlThread, ControlError> {
        let Self { socket, remote, kerberos, owner, file } = self;
        kerberos.announce(front.snapshot.load().config.remote_control(), &front.state);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ControlError::Start)?;
        let (further, _) = socket.share().map_err(ControlError::Start)?;
        let further_remote = remote.as_ref().map(|remote| remote.share().map(|(socket, _)| socket));
        let further_remote = further_remote.transpose().map_err(ControlError::Start)?;
        let acceptor = {
            let _in_runtime = runtime.enter();
            socket.register("control", front.state.clone()).map_err(ControlError::Start)?
        };
        let (stop, mut stopped) = oneshot::channel();
        let (leave, left) = oneshot::channel();
        let serve = move || {
            let part = part_of_a_core();
            runtime.block_on(async {
                let (refused, proved) = (RateLimitedEvent::default(), Proved::default());
                let ending = Arc::new(Ending::default());
                let shared = Arc::new(Shared {
                    front,
                    owner,
                    refused,
                    logins,
                    kerberos,
                    proved,
                    ending: ending.clone(),
                });
                let last_line = tokio::select! {
                    () = accept(acceptor, shared.clone(), part) => Duration::ZERO,
                    () = remote::accept(remote, shared, part) => Duration::ZERO,
                    // Clients that are here are still answered.
                    Ok(()) = left => {
                        drop(stopped.await);
                        LAST_LINE_TIME
                    }
                    _ = &mut stopped => Duration::ZERO,
                };
                ending.run(last_line).await;
            });
            // Without a wait: a call of GSSAPI cannot be interrupted, and may take as long as the resolver's limit.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(serve)
            .map_err(ControlError::Start)?;
        Ok(ControlThread {
            stop: Some(stop),
            leave: Some(leave),
            thread: Some(thread),
            listener: further,
            remote: further_remote,
            file,
        })
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl ControlThread {
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The listening socket and its file, for the next process.
    pub(crate) fn share(&self) -> io::Result<(OwnedFd, &SocketPath)> {
        Ok((self.listener.try_clone()?, &self.file))
    }

    /// The listening socket for clients over the network.
    pub(crate) fn share_remote(&self) -> io::Result<Option<OwnedFd>> {
        self.remote.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Takes no further clients: the next process does.
    pub(crate) fn leave(&mut self) {
        if let Some(leave) = self.leave.take() {
            // A thread that has ended takes none either.
            let _ = leave.send(());
        }
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// Moves this thread to the background. Returns which part of a core it may use, as 1 of so many.
fn part_of_a_core() -> u32 {
    let has_quota = usable().map_or(true, |cores| cpu::count() < cores.len());
    match run_in_background() {
        Ok(()) if !has_quota => BACKGROUND_PART,
        Ok(()) => FOREGROUND_PART,
        Err(error) => {
            tracing::debug!("the control thread runs with the priority of the workers: {error}");
            FOREGROUND_PART
        }
    }
}

async fn accept(acceptor: Acceptor, shared: Arc<Shared>, part: u32) {
    let slots = {
        let state = &shared.front.state;
        ClientSlotSet::new(state.account.size_of(SIZE), state.control_evicted.clone())
    };
    let work = Pace::one_part_in(part);
    let mut accepting = Pace::one_part_in(part).client();
    loop {
        accepting.turn().await;
        let Arrival::Unix(stream) = acceptor.next().await else { continue };
        let start = thread_time();
        // Before its rights are looked up: a flood of these must cost little, because others wait behind it.
        if let Ok(peer) = stream.peer_cred()
            && let Some(limit) = slots.over_share(shared.party(peer.uid()))
        {
            refuse(stream, &over_share(peer.uid(), limit));
            accepting.charge(thread_time().saturating_sub(start));
            continue;
        }
        let mut costs = 1;
        match shared.admit(&stream) {
            Ok(admitted) => match slots.slot_within(shared.party(admitted.who.uid), PLACE_LIMIT).await {
                Ok(slot) => {
                    let id = slot.id();
                    let slot = Arc::new(slot);
                    let stream = Stream::Unix(stream);
                    let session = Session::new(shared.clone(), admitted, stream, slot.clone());
                    let task = Paced::new(work.client(), session.run()).tells(slot);
                    slots.keep(id, tokio::spawn(task).abort_handle());
                }
                Err(NoSlot::AllBusy) => refuse(stream, "too many control clients, and all are busy"),
                Err(NoSlot::OverShare(limit)) => refuse(stream, &over_share(admitted.who.uid, limit)),
            },
            Err(reason) => {
                let state = &shared.front.state;
                if shared.refused.may(state.started.elapsed()) {
                    state.events.record(Level::Warning, "control", format!("refused: {reason}"));
                }
                refuse(stream, &reason);
                costs = REFUSED_COSTS;
            }
        }
        accepting.charge(thread_time().saturating_sub(start) * costs);
    }
}

fn over_share(uid: u32, limit: Limit) -> String {
    match limit {
        Limit::OfParty(most) => format!(
            "too many control clients of uid {uid}: it has {most} already, which is the limit of a user; close some of them, or try again later"
        ),
        Limit::OfUsers(most) => format!(
            "too many control clients: users other than root and the server's have {most} already, which is the limit; try again later"
        ),
    }
}

/// Sends the reason and closes without waiting: the message must fit into the socket's empty send buffer.
fn refuse(stream: UnixStream, reason: &str) {
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(&framing::refusal(reason, ""));
    }
}

/// Names of all commands, for programs that implement a client.
pub fn commands() -> impl Iterator<Item = &'static str> {
    command::names()
}

#[cfg(test)]
mod tests;
