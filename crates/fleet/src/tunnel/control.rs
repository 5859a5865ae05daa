//! The control socket of a running tunnel, for `status` and `down`. Only its own user and root may connect.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hosts::tunnel::plan::Listen;
use nix::unistd::geteuid;
use sys::socket::SocketFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::journal::places_of_run;
use super::place::{Found, PlaceError, Places, look, named, user};
use super::relay::causes;
use super::status::{Board, Status};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Status,
    /// Ends the tunnel. The answer is sent after the teardown.
    Down,
}

impl Asked {
    fn word(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Down => "down",
        }
    }
}

/// Reason why a tunnel gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The directory of the sockets is not safe from other users.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A process of another user listens on the socket.
    #[error("tunnel {tunnel} was not asked: {} answers on {}, and we are {}; remove that socket, and look who could make it", user(*.owner), .path.display(), user(geteuid().as_raw()))]
    Stranger { tunnel: String, path: PathBuf, owner: u32 },
    /// The tunnel runs and does not answer.
    #[error("tunnel {tunnel} runs, but does not answer within {} s: {}", ANSWER.as_secs(), silent(*.process))]
    Silent { tunnel: String, process: Option<u32> },
    /// A process holds the lock of the tunnel, but has no control socket.
    #[error("process {process} works on tunnel {tunnel}, but its socket {} is not there: it is starting, stopping or unwinding, or the socket was removed; `kill {process}` ends it", .path.display())]
    Deaf { tunnel: String, process: u32, path: PathBuf },
    /// The answer cannot be parsed.
    #[error("the answer of tunnel {tunnel} is not understood: is it running another version?")]
    Answer { tunnel: String, source: serde_json::Error },
    /// A system call failed, or the tunnel closed the connection.
    #[error("cannot ask tunnel {tunnel}")]
    Io { tunnel: String, source: io::Error },
}

fn silent(process: Option<u32>) -> String {
    match process {
        Some(process) => format!("look at process {process} (is it suspended? kill -CONT {process})"),
        None => "too many clients ask it at once, or it is suspended".to_owned(),
    }
}

/// Sends a request to a tunnel. `None`: the tunnel does not run. The time limit for a status is 5 s. `down` has no time
/// limit, as long as the tunnel still answers requests for its status.
///
/// # Errors
/// The socket belongs to another user, and nothing was sent; or no valid answer came in time.
pub async fn ask(places: &Places, tunnel: &str, asked: Asked) -> Result<Option<Status>, AskError> {
    match ask_once(places, tunnel, asked).await {
        // It was killed while it started a program: until execve(2) the child holds the socket, and does not read from it.
        Err(AskError::Io { source, .. }) if source.kind() == io::ErrorKind::ConnectionReset => {
            ask_once(places, tunnel, asked).await
        }
        answered => answered,
    }
}

async fn ask_once(places: &Places, tunnel: &str, asked: Asked) -> Result<Option<Status>, AskError> {
    named(tunnel)?;
    let places = &places_of_run(places, tunnel);
    let Some(stream) = reach(places, tunnel).await? else {
        let deaf = |process| {
            let path = places.control(tunnel);
            Err(AskError::Deaf { tunnel: tunnel.to_owned(), process, path })
        };
        return places.holder(tunnel).map_or(Ok(None), deaf);
    };
    match asked {
        Asked::Status => ask_in_time(tunnel, stream, asked).await,
        Asked::Down => {
            let mut answered = pin!(converse(tunnel, stream, asked));
            loop {
                if let Ok(answered) = timeout(ANSWER, &mut answered).await {
                    return answered;
                }
                // An empty answer is enough: the tunnel may have ended meanwhile.
                if let Some(stream) = reach(places, tunnel).await?
                    && let Err(error @ AskError::Silent { .. }) =
                        ask_in_time(tunnel, stream, Asked::Status).await
                {
                    return Err(error);
                }
            }
        }
    }
}

/// Name of another tunnel that listens at `at` on this machine.
pub(crate) async fn other_tunnel_at(places: &Places, tunnel: &str, at: &Listen) -> Option<String> {
    let at = at.to_string();
    for name in places.known().ok()?.into_iter().filter(|name| name != tunnel) {
        if let Ok(Some(status)) = ask(places, &name, Asked::Status).await
            && status.forwards.iter().any(|forward| forward.kind != "remote" && forward.listen == at)
        {
            return Some(name);
        }
    }
    None
}

/// Time limit for the answer of a tunnel that is not suspended.
const ANSWER: Duration = Duration::from_secs(5);

/// Connects to the control socket, and verifies the user of the process behind it.
async fn reach(places: &Places, tunnel: &str) -> Result<Option<UnixStream>, AskError> {
    if look(&places.runtime)? == Found::Nothing {
        return Ok(None);
    }
    let path = places.control(tunnel);
    let failed = |source| AskError::Io { tunnel: tunnel.to_owned(), source };
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(None),
            // The queue of the listener is full: no process accepts.
            io::ErrorKind::WouldBlock => {
                return Err(AskError::Silent { tunnel: tunnel.to_owned(), process: None });
            }
            _ => return Err(failed(error)),
        },
    };
    let owner = sys::peer::credentials(&stream).map_err(failed)?.uid;
    match owner == geteuid().as_raw() {
        true => Ok(Some(stream)),
        false => Err(AskError::Stranger { tunnel: tunnel.to_owned(), path, owner }),
    }
}

async fn ask_in_time(tunnel: &str, stream: UnixStream, asked: Asked) -> Result<Option<Status>, AskError> {
    let process = sys::peer::credentials(&stream).ok().and_then(|peer| peer.pid);
    let silent = || Err(AskError::Silent { tunnel: tunnel.to_owned(), process });
    timeout(ANSWER, converse(tunnel, stream, asked)).await.unwrap_or_else(|_| silent())
}

async fn converse(tunnel: &str, mut stream: UnixStream, asked: Asked) -> Result<Option<Status>, AskError> {
    let failed = |source| AskError::Io { tunnel: tunnel.to_owned(), source };
    stream.write_all(format!("{}\n", asked.word()).as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(LARGEST).read_to_end(&mut answer).await.map_err(failed)?;
    match serde_json::from_slice(&answer) {
        Ok(status) => Ok(Some(status)),
        // The tunnel ended before it could answer.
        Err(_) if answer.is_empty() => Ok(None),
        Err(source) => Err(AskError::Answer { tunnel: tunnel.to_owned(), source }),
    }
}

/// The server side of the control socket. Dropping it closes the socket.
pub(crate) struct Control {
    task: tokio::task::JoinHandle<()>,
    file: SocketFile,
    finished: watch::Sender<bool>,
}

impl Control {
    /// Listens on the control socket. `stop` is called for `down`.
    pub(crate) fn listen(
        places: &Places,
        tunnel: &str,
        board: Arc<Board>,
        stop: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, String> {
        let path = places.control(tunnel);
        let (listener, file) = sys::socket::listen_unix(&path, 0o600).map_err(|error| causes(&error))?;
        let listener = UnixListener::from_std(listener).map_err(|error| error.to_string())?;
        let finished = watch::Sender::new(false);
        let ends = finished.clone();
        let task = tokio::spawn(async move {
            let places = Arc::new(Semaphore::new(16));
            while let Ok(place) = Arc::clone(&places).acquire_owned().await {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (board, stop, ends) = (Arc::clone(&board), Arc::clone(&stop), ends.subscribe());
                tokio::spawn(async move {
                    // The client has closed the connection and does not need the answer.
                    let _ = answer(stream, &board, &*stop, ends).await;
                    drop(place);
                });
            }
        });
        Ok(Self { task, file, finished })
    }

    /// Answers the clients that wait for the end.
    pub(crate) async fn finish(self) {
        self.file.remove();
        self.finished.send_replace(true);
        // The clients' tasks send their answers now.
        let _ = timeout(Duration::from_secs(2), async {
            while self.finished.receiver_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    mut stream: UnixStream,
    board: &Board,
    stop: &(dyn Fn() + Send + Sync),
    mut ends: watch::Receiver<bool>,
) -> io::Result<()> {
    let peer = sys::peer::credentials(&stream)?;
    if peer.uid != 0 && peer.uid != geteuid().as_raw() {
        return Ok(());
    }
    let mut words = [0; 16];
    let mut said = 0;
    while said < words.len() && !words[..said].contains(&b'\n') {
        match timeout(Duration::from_secs(5), stream.read(&mut words[said..])).await {
            Ok(Ok(count @ 1..)) => said += count,
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => return Ok(()),
        }
    }
    match words[..said].trim_ascii_end() {
        b"status" => {}
        b"down" => {
            stop();
            let _ = ends.wait_for(|ended| *ended).await;
        }
        _ => return Ok(()),
    }
    let status = serde_json::to_vec(&board.status()).map_err(io::Error::other)?;
    // A time limit, since a client that does not read holds one of 16 places.
    timeout(ANSWER, stream.write_all(&status)).await??;
    stream.shutdown().await
}

/// Limit of a status, in bytes; a forward takes a few hundred.
const LARGEST: u64 = 4 << 20;
