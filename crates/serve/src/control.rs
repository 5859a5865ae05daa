//! The control socket: where `penstock ctl` asks and changes things.
//!
//! It has a thread and a runtime of its own, and the work it may do is paced: neither an idle nor a flooding client
//! changes anything for traffic. Who may talk is decided by the kernel's peer credentials (SO_PEERCRED, unix(7)).

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sys::socket::{ListenUnixError, listen_unix};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::sleep;

use crate::events::Level;
use crate::front::Front;
use crate::listen::SocketFile;

mod command;
mod framing;
mod pace;
mod session;

use pace::Pace;
use session::{Session, Who};

/// Clients at once.
pub(crate) const MAX_CLIENTS: usize = 64;

/// Pause after an accept that failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What one connection costs of the pace, before it has said anything.
const ACCEPT_COST: Duration = Duration::from_millis(1);

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
    file: SocketFile,
}

/// A control socket that is served by its own thread. Dropping it ends the thread and removes the file.
#[derive(Debug)]
pub struct ControlThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    file: SocketFile,
}

/// Binds the control socket. Call it before privileges are dropped: the directory may belong to root.
pub fn bind(path: &Path) -> Result<ControlSocket, ControlError> {
    let listener =
        listen_unix(path, MODE).map_err(|source| ControlError::Bind { path: path.to_owned(), source })?;
    Ok(ControlSocket {
        listener,
        owner: nix::unistd::geteuid().as_raw(),
        file: SocketFile::new(path.to_owned()),
    })
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
                    () = accept(listener, Arc::new(Shared { front, owner, pace: Pace::default() })) => {}
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

/// What all sessions share.
struct Shared {
    front: Arc<Front>,
    owner: u32,
    pace: Pace,
}

impl Shared {
    /// The kernel says who connected; root and whoever runs this process may.
    fn admit(&self, stream: &UnixStream) -> Result<Who, String> {
        let peer = stream.peer_cred().map_err(|error| format!("cannot tell who is there: {error}"))?;
        let allowed = [0, self.owner, nix::unistd::geteuid().as_raw()];
        if allowed.contains(&peer.uid()) {
            Ok(Who { uid: peer.uid(), pid: peer.pid() })
        } else {
            Err(format!("uid {} may not control this process", peer.uid()))
        }
    }
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    loop {
        shared.pace.wait().await;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        shared.pace.charge(ACCEPT_COST);
        let Ok(place) = places.clone().try_acquire_owned() else {
            refuse(stream, "too many control clients");
            continue;
        };
        match shared.admit(&stream) {
            Ok(who) => {
                let session = Session::new(shared.clone(), who, stream);
                tokio::spawn(async move {
                    session.run().await;
                    drop(place);
                });
            }
            Err(reason) => {
                shared.front.state.events.record(Level::Warning, "control", format!("refused: {reason}"));
                refuse(stream, &reason);
            }
        }
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
