//! The control socket: where `penstock ctl` asks and changes things.
//!
//! It has a thread and a runtime of its own, and the work it may do is paced, for all clients together and fairly among them:
//! neither an idle nor a flooding client changes anything for traffic, nor for another client. Who may talk is decided by the
//! kernel's peer credentials (SO_PEERCRED, unix(7)).
//!
//! # The path of a control command
//!
//! `crates/penstock/src/cmd/ctl.rs` -> the Unix socket -> `crates/serve/src/control/session.rs` (framing, limits, peer
//! credentials) -> `crates/serve/src/control/command.rs` (one table: name, arguments, help, handler) -> `State`, or a request to the
//! supervisor in `crates/serve/src/start.rs`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sys::cpu::thread_time;
use sys::socket::{ListenUnixError, listen_unix};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::events::Level;
use crate::front::Front;
use crate::listen::SocketPath;
use crate::pace::{Pace, Paced};
use crate::places::{PlaceSet, Size};

mod client;
mod command;
mod framing;
mod session;

use client::Shared;
use session::Session;

/// Clients at once. A new one gets the place of the one that has said nothing for longest.
///
/// Clients that follow events keep their places: an operator who watches must not lose the events of the next minute because
/// another one has logged in. So there have to be places that no follower can have.
pub(crate) const SIZE: Size = Size { places: 64, following: 56 };

/// How long a client waits for a place while all others are in the middle of a command.
const PLACE_LIMIT: Duration = Duration::from_secs(5);

/// The control thread may do its clients' work for a tenth of the time, and accept new ones for another: some thousands in a
/// second.
const WORK_PART: u32 = 10;
const ACCEPT_PART: u32 = 10;

/// Pause after an accept that failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Only the owner: nobody else can even connect.
const MODE: u32 = 0o600;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The path cannot be had.
    #[error("listen on control socket {}", .path.display())]
    Bind {
        /// As configured.
        path: PathBuf,
        /// What is in the way.
        source: ListenUnixError,
    },
    /// The thread or its runtime cannot be started.
    #[error("start the control thread")]
    Start(#[source] io::Error),
}

/// A control socket that is bound and not yet served. Its file goes away with it.
#[derive(Debug)]
pub struct ControlSocket {
    listener: std::os::unix::net::UnixListener,
    /// The effective user at the time of the bind, before privileges were dropped.
    owner: u32,
    // After `listener`: fields are dropped in this order.
    file: SocketPath,
}

/// A control socket that is served by its own thread. Dropping it ends the thread and removes the file.
#[derive(Debug)]
pub struct ControlThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    file: SocketPath,
}

/// Binds the control socket. Call it before privileges are dropped: the directory may belong to root.
pub fn bind(path: &Path) -> Result<ControlSocket, ControlError> {
    let (listener, file) =
        listen_unix(path, MODE).map_err(|source| ControlError::Bind { path: path.to_owned(), source })?;
    Ok(ControlSocket { listener, owner: nix::unistd::geteuid().as_raw(), file: SocketPath(file) })
}

impl ControlSocket {
    /// Starts the thread that serves it.
    pub fn run(self, front: Arc<Front>) -> Result<ControlThread, ControlError> {
        let Self { listener, owner, file } = self;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ControlError::Start)?;
        listener.set_nonblocking(true).map_err(ControlError::Start)?;
        let listener = {
            let _in_runtime = runtime.enter();
            UnixListener::from_std(listener).map_err(ControlError::Start)?
        };
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, Arc::new(Shared { front, owner })) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(serve)
            .map_err(ControlError::Start)?;
        Ok(ControlThread { stop: Some(stop), thread: Some(thread), file })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl ControlThread {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has already been printed; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let places = {
        let state = &shared.front.state;
        PlaceSet::new(state.account.size_of(SIZE), state.control_evicted.clone())
    };
    let work = Pace::one_part_in(WORK_PART);
    let mut accepting = Pace::one_part_in(ACCEPT_PART).client();
    loop {
        accepting.turn().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let start = thread_time();
        match shared.admit(&stream) {
            Ok(who) => match places.place_within(PLACE_LIMIT).await {
                Some(place) => {
                    let id = place.id();
                    let place = Arc::new(place);
                    let session = Session::new(shared.clone(), who, stream, place.clone());
                    let task = Paced::new(work.client(), session.run()).tells(place);
                    places.keep(id, tokio::spawn(task).abort_handle());
                }
                None => refuse(stream, "too many control clients: all are in the middle of a command"),
            },
            Err(reason) => {
                shared.front.state.events.record(Level::Warning, "control", format!("refused: {reason}"));
                refuse(stream, &reason);
            }
        }
        accepting.charge(thread_time().saturating_sub(start));
    }
}

/// Says why and closes, without waiting for a client that does not read: what fits into the socket's empty buffer is
/// all there is to say.
fn refuse(stream: UnixStream, reason: &str) {
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(&framing::refusal(reason, ""));
    }
}

#[cfg(test)]
mod tests;
